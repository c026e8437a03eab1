import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

/** What a starting broker knows of a partition before it looks into its directory. */
record Loading(boolean clean, long recoveryPoint, long logStartOffset, int producerIdExpirationMs, Time time,
               Scheduler scheduler) {

    ProducerStateManagerConfig producerConfig() {
        return new ProducerStateManagerConfig(producerIdExpirationMs, false);
    }

    LogDirFailureChannel failures() {
        return new LogDirFailureChannel(1);
    }
}
