package org.batchllm;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Native memory that is shared by a handle and the buffers over it. It is freed once the handle is closed and none of
 * the buffers, nor any view of one, is reachable any more. So a buffer stays readable whatever is closed.
 */
final class NativeMemory {
    private final NativeObject object;
    private final AtomicInteger holders = new AtomicInteger(1);

    /** Starts with one reference, that of the handle. */
    NativeMemory(NativeObject object) {
        this.object = object;
    }

    void release() {
        if (holders.decrementAndGet() == 0) object.delete();
    }

    /**
     * A read-only buffer that keeps the memory alive. root: a new buffer over the memory that nothing else refers to.
     * Every view refers to it, so it is unreachable only once all of them are.
     */
    ByteBuffer lend(ByteBuffer root) {
        holders.incrementAndGet();
        Handle.CLEANER.register(root, this::release);
        return root.asReadOnlyBuffer().order(ByteOrder.nativeOrder());
    }
}
