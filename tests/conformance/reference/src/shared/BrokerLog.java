import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.StringJoiner;

import org.apache.kafka.common.message.FetchResponseData.AbortedTransaction;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;

/**
 * A partition that is loaded, written and read as a broker does with it, its only replica.
 *
 * The high watermark follows the log end at once. What a broker does soon in the background is done at once, and what
 * it does later, such as the removal of files that it has renamed to {@code .deleted}, is not done.
 */
final class BrokerLog {
    private static final String EXPIRATION = "producer.id.expiration.ms";

    private final KafkaLog log;
    private final Clock clock;

    private BrokerLog(KafkaLog log, Clock clock) throws IOException {
        this.log = log;
        this.clock = clock;
        log.updateHighWatermark(log.logEndOffset());
    }

    /** Loads a directory; its fields are the settings of a topic, and the broker's about producers. */
    static BrokerLog open(File directory, boolean clean, long recoveryPoint, long logStartOffset, long nowMs,
                          String[] fields, int from) throws IOException {
        Map<String, String> settings = new HashMap<>();
        for (int i = from; i < fields.length; i++) {
            int sign = fields[i].indexOf('=');
            settings.put(fields[i].substring(0, sign), fields[i].substring(sign + 1));
        }
        String expirationMs = settings.remove(EXPIRATION);
        Clock clock = new Clock(nowMs);
        Loading loading = new Loading(clean, recoveryPoint, logStartOffset,
            expirationMs == null ? Opening.PRODUCER_ID_EXPIRATION_MS : Integer.parseInt(expirationMs), clock,
            Schedulers.PROMPT);
        return new BrokerLog(KafkaLog.create(directory, new LogConfig(settings), loading), clock);
    }

    String setClock(long nowMs) {
        clock.set(nowMs);
        return "";
    }

    String appendAsLeader(Path file, int leaderEpoch, String origin) throws IOException {
        return appended(log.appendAsLeader(batches(file), leaderEpoch, AppendOrigin.valueOf(origin)));
    }

    String appendAsFollower(Path file, int leaderEpoch) throws IOException {
        return appended(log.appendAsFollower(batches(file), leaderEpoch));
    }

    String roll() throws IOException {
        log.roll();
        return describe();
    }

    /** The first offset that the cleaner has not cleaned, which a broker would checkpoint; then the log. */
    String clean(long uncleanableOffset) throws Exception {
        return "\t" + log.clean(uncleanableOffset) + describe();
    }

    String flush() {
        log.flush();
        return "";
    }

    String truncateTo(long offset) throws IOException {
        log.truncateTo(offset);
        return describe();
    }

    /**
     * Base offset of the segment, position, size and the offset that Kafka calls it by; then producer and first offset
     * of each aborted transaction.
     */
    String read(long offset, int maxBytes, boolean minOneMessage, String isolation) throws IOException {
        FetchDataInfo fetched = log.read(offset, maxBytes, FetchIsolation.valueOf(isolation), minOneMessage);
        StringJoiner reply = new StringJoiner("\t", "\t", "");
        if (fetched.records.sizeInBytes() == 0)
            reply.add(Answers.EMPTY);
        else
            reply.add(fetched.fetchOffsetMetadata.segmentBaseOffset + " "
                + fetched.fetchOffsetMetadata.relativePositionInSegment + " " + fetched.records.sizeInBytes() + " "
                + fetched.fetchOffsetMetadata.messageOffset);
        if (fetched.abortedTransactions.isPresent())
            for (AbortedTransaction aborted : fetched.abortedTransactions.get())
                reply.add(aborted.producerId() + " " + aborted.firstOffset());
        return reply.toString();
    }

    /** What a consumer returns, in fetches of so many bytes. */
    String consume(long offset, boolean committed, int maxBytes) throws IOException {
        return log.consume(offset, committed, maxBytes);
    }

    /** Log start, log end, last stable offset and recovery point; then the base offsets of the segments. */
    String describe() {
        StringJoiner reply = new StringJoiner("\t", "\t", "");
        reply.add(log.logStartOffset() + "\t" + log.logEndOffset() + "\t" + log.lastStableOffset() + "\t"
            + log.recoveryPoint());
        for (LogSegment segment : log.segments())
            reply.add(String.valueOf(segment.baseOffset()));
        return reply.toString();
    }

    /** Epoch and start offset of each leader epoch. */
    String epochs() {
        StringBuilder reply = new StringBuilder();
        for (EpochEntry entry : log.epochs())
            reply.append('\t').append(KafkaLog.numbers(entry));
        return reply.toString();
    }

    /**
     * Producer id, producer epoch, coordinator epoch, last timestamp, first and last data offset, and the first offset
     * of the open transaction (-1: none) of each active producer, in Kafka's order.
     */
    String producers() {
        StringBuilder reply = new StringBuilder();
        for (ProducerStateEntry entry : log.producers().activeProducers().values())
            reply.append('\t').append(entry.producerId()).append(' ').append(entry.producerEpoch()).append(' ')
                .append(entry.coordinatorEpoch()).append(' ').append(entry.lastTimestamp()).append(' ')
                .append(entry.firstDataOffset()).append(' ').append(entry.lastDataOffset()).append(' ')
                .append(entry.currentTxnFirstOffset().orElse(-1));
        return reply.toString();
    }

    /** As a clean shutdown does. */
    String close() {
        log.flush();
        log.close();
        return "";
    }

    /** As a kill leaves the files, but for the zeros behind the entries of the active segment's index files. */
    String drop() throws IOException {
        LogSegment active = log.segments().get(log.segments().size() - 1);
        active.offsetIndex().trimToValidSize();
        active.timeIndex().trimToValidSize();
        return kill();
    }

    /** As a kill leaves the files. */
    String kill() {
        log.abandon();
        return "";
    }

    private String appended(LogAppendInfo appended) throws IOException {
        log.updateHighWatermark(log.logEndOffset());
        return "\t" + appended.firstOffset() + "\t" + appended.lastOffset() + describe();
    }

    private static MemoryRecords batches(Path file) throws IOException {
        return MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(file)));
    }
}
