import java.io.File;
import java.io.IOException;
import java.util.List;
import java.util.Optional;

import org.apache.kafka.clients.consumer.internals.ConsumedRecords;
import org.apache.kafka.common.record.internal.FileRecords.TimestampAndOffset;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.common.TransactionVersion;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** A broker's log as 4.3.1 has it, and what else of Kafka's is called otherwise in other versions. */
final class KafkaLog {
    private static final BrokerTopicStats STATISTICS = new BrokerTopicStats();

    private final UnifiedLog log;

    private KafkaLog(UnifiedLog log) {
        this.log = log;
    }

    static int recover(LogSegment segment, ProducerStateManager producers, LeaderEpochFileCache epochs)
            throws IOException {
        return segment.recover(producers, epochs);
    }

    static String numbers(EpochEntry entry) {
        return entry.epoch() + " " + entry.startOffset();
    }

    static long startOffset(EpochEntry entry) {
        return entry.startOffset();
    }

    static int epoch(EpochEntry entry) {
        return entry.epoch();
    }

    /** The offset by which what was read is called: that of its batch, or the one that was asked for. */
    static long nameOfRead(long offset, long baseOffset) {
        return baseOffset;
    }

    static String start(String[] fields) throws Exception {
        return Starting.run(fields);
    }

    static String startRaft(String[] fields) {
        return StartingRaft.run(fields);
    }

    static KafkaLog create(File directory, LogConfig config, Loading loading) throws IOException {
        return new KafkaLog(UnifiedLog.create(directory, config, loading.logStartOffset(), loading.recoveryPoint(),
            loading.scheduler(), STATISTICS, loading.time(), Opening.TRANSACTION_TIMEOUT_MS, loading.producerConfig(),
            Opening.PRODUCER_ID_EXPIRATION_CHECK_MS, loading.failures(), loading.clean(), Optional.empty()));
    }

    long logStartOffset() {
        return log.logStartOffset();
    }

    long logEndOffset() {
        return log.logEndOffset();
    }

    long lastStableOffset() {
        return log.lastStableOffset();
    }

    long recoveryPoint() {
        return log.recoveryPoint();
    }

    List<LogSegment> segments() {
        return log.logSegments();
    }

    ProducerStateManager producers() {
        return log.producerStateManager();
    }

    List<EpochEntry> epochs() {
        return log.leaderEpochCache().epochEntries();
    }

    void assignEpoch(int epoch, long startOffset) {
        log.assignEpochStartOffset(epoch, startOffset);
    }

    long updateHighWatermark(long offset) throws IOException {
        return log.updateHighWatermark(offset);
    }

    LogAppendInfo appendAsLeader(MemoryRecords records, int leaderEpoch, AppendOrigin origin) {
        return log.appendAsLeader(records, leaderEpoch, origin, RequestLocal.noCaching(), VerificationGuard.SENTINEL,
            TransactionVersion.TV_0.featureLevel());
    }

    LogAppendInfo appendAsFollower(MemoryRecords records, int leaderEpoch) {
        return log.appendAsFollower(records, leaderEpoch);
    }

    FetchDataInfo read(long offset, int maxBytes, FetchIsolation isolation, boolean minOneMessage) throws IOException {
        return log.read(offset, maxBytes, isolation, minOneMessage);
    }

    String consume(long offset, boolean committed, int maxBytes) throws IOException {
        return ConsumedRecords.read(log, offset, committed, maxBytes);
    }

    Optional<TimestampAndOffset> fetchOffsetByTimestamp(long timestamp) {
        return log.fetchOffsetByTimestamp(timestamp, Optional.empty()).timestampAndOffsetOpt();
    }

    void roll() throws IOException {
        log.roll();
    }

    void flush() {
        log.flush(true);
    }

    void truncateTo(long offset) {
        log.truncateTo(offset);
    }

    /** The first offset that is not cleaned, once the cleaner has been over all below an offset. */
    long clean(long uncleanableOffset) throws Exception {
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", Time.SYSTEM);
        Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(1 << 20), 1 << 20, 1 << 20, 0.9, throttler, Time.SYSTEM,
            partition -> { });
        return cleaner.clean(new LogToClean(log, log.logStartOffset(), uncleanableOffset, false)).getKey();
    }

    void close() {
        log.removeLogMetrics();
        log.close();
    }

    /** Lets go of the files as they are. */
    void abandon() {
        log.removeLogMetrics();
        log.closeHandlers();
    }
}
