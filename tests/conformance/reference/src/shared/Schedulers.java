import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Delayed;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.server.util.Scheduler;

/** What becomes of a broker's background work where there is no background. */
final class Schedulers {
    /** Nothing of it happens. */
    static final Scheduler IDLE = new Foreground(false);
    /** What a broker does as soon as it can is done at once; what it does later, or now and then, never. */
    static final Scheduler PROMPT = new Foreground(true);

    private Schedulers() {
    }

    private record Foreground(boolean prompt) implements Scheduler {
        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            if (prompt && delayMs == 0 && periodMs < 0)
                task.run();
            return new Done();
        }

        @Override
        public void startup() {
        }

        @Override
        public void shutdown() {
        }

        @Override
        public void resizeThreadPool(int newSize) {
        }
    }

    private static final class Done extends CompletableFuture<Void> implements ScheduledFuture<Void> {
        private Done() {
            complete(null);
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return 0;
        }

        @Override
        public int compareTo(Delayed other) {
            return 0;
        }
    }
}
