package org.batchllm;

import java.lang.ref.Cleaner;
import java.lang.ref.Reference;

/**
 * A native object and its current uses. It is freed once: by {@link #close}, or by the cleaner when nothing refers to
 * the handle any more, and never while in use.
 *
 * <p>A use is either exclusive, by one thread at a time (uses may nest), or shared, by any number of threads, even
 * during an exclusive one. The C interface determines which kind a call is.
 */
final class Handle {
    static final Cleaner CLEANER = Cleaner.create();

    /** Ends a use. */
    interface Use extends AutoCloseable {
        @Override
        void close();
    }

    private final String name;
    private final Cleaner.Cleanable cleanable;
    private final Use exclusive = this::leave;
    private final Use shared = this::leaveShared;
    private Thread owner;
    private int depth;
    private int sharers;
    private boolean closed;

    /** free: runs once, on any thread; must not refer to the object that owns this handle. */
    Handle(String name, Runnable free) {
        this.name = name;
        cleanable = CLEANER.register(this, free);
    }

    /** try (Handle.Use use = handle.use()) { ... } */
    Use use() {
        NativeLog.refuseCallsWhileLogging();
        synchronized (this) {
            checkOpen();
            Thread caller = Thread.currentThread();
            if (depth > 0 && owner != caller) {
                throw new IllegalStateException(
                        "this " + name + " is in use by thread \"" + owner.getName() + "\"");
            }
            owner = caller;
            depth++;
            return exclusive;
        }
    }

    /** For calls that any thread may make at any time. */
    Use share() {
        NativeLog.refuseCallsWhileLogging();
        synchronized (this) {
            checkOpen();
            sharers++;
            return shared;
        }
    }

    private void checkOpen() {
        if (closed) throw new IllegalStateException("this " + name + " is closed");
    }

    private synchronized void leave() {
        if (--depth == 0) owner = null;
        Reference.reachabilityFence(this);
    }

    private synchronized void leaveShared() {
        sharers--;
        Reference.reachabilityFence(this);
    }

    /** Throws while it is in use; does nothing the second time. */
    void close() {
        synchronized (this) {
            if (closed) return;
            if (depth + sharers > 0) {
                throw new IllegalStateException(
                        "this " + name + " is in use"
                                + (depth > 0 ? " by thread \"" + owner.getName() + "\"" : "")
                                + " and cannot be closed");
            }
            closed = true;
        }
        cleanable.clean();
    }
}
