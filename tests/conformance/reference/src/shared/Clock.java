import java.util.function.Supplier;

import org.apache.kafka.common.utils.Time;

/** A clock that stands where it was set. */
final class Clock implements Time {
    private long nowMs;

    Clock(long nowMs) {
        this.nowMs = nowMs;
    }

    void set(long newNowMs) {
        nowMs = newNowMs;
    }

    @Override
    public long milliseconds() {
        return nowMs;
    }

    @Override
    public long nanoseconds() {
        return nowMs * 1_000_000;
    }

    @Override
    public void sleep(long ms) {
        throw new UnsupportedOperationException("Nobody moves this clock on");
    }

    @Override
    public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
        throw new UnsupportedOperationException("Nobody moves this clock on");
    }
}
