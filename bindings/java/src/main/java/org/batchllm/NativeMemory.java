package org.batchllm;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Native memory that a handle and the buffers over it share: it is freed when the handle is closed
 * and none of the buffers, nor a view of one, can be reached any more. So a buffer stays readable
 * whatever is closed.
 */
final class NativeMemory {
    private final NativeObject object;
    private final AtomicInteger holders = new AtomicInteger(1);

    /** Held once, by the handle. */
    NativeMemory(NativeObject object) {
        this.object = object;
    }

    void release() {
        if (holders.decrementAndGet() == 0) object.delete();
    }

    /**
     * A read-only buffer that holds the memory. root: over the memory, fresh, and known to nobody else:
     * every view of it refers to it, so it is unreachable only when all of them are.
     */
    ByteBuffer lend(ByteBuffer root) {
        holders.incrementAndGet();
        Handle.CLEANER.register(root, this::release);
        return root.asReadOnlyBuffer().order(ByteOrder.nativeOrder());
    }
}
