import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;

import org.apache.kafka.common.record.internal.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.internal.FileRecords.LogOffsetPosition;
import org.apache.kafka.common.record.internal.FileRecords.TimestampAndOffset;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.requests.ListOffsetsRequest;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogFileUtils;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.TimestampOffset;

/**
 * A partition in a broker's own {@code UnifiedLog}, and what it says.
 *
 * Where Kafka has a method, its answer is given. Where it has none (what holds the record that was found, the first
 * record of a fetch, a lookup that goes no further than the indexes), Kafka's segments, indexes and batches are walked
 * here, and what Kafka did say is compared.
 */
final class OpenPartition {
    private final KafkaLog log;
    private final List<LogSegment> segments;

    private OpenPartition(KafkaLog log) {
        this.log = log;
        this.segments = List.copyOf(log.segments());
    }

    /** Opens a partition after building, by recovery of each segment alone, the index files that are missing. */
    static OpenPartition open(File directory, int indexIntervalBytes, int segmentIndexBytes, long logStartOffset,
                              long fileTimeMs) throws IOException {
        List<File> logs;
        try (Stream<Path> files = Files.list(directory.toPath())) {
            logs = files.map(Path::toFile).filter(file -> file.getName().endsWith(LogFileUtils.LOG_FILE_SUFFIX)).sorted().toList();
        }
        for (File file : logs) {
            long baseOffset = LogFileUtils.offsetFromFile(file);
            if (!LogFileUtils.offsetIndexFile(directory, baseOffset, "").exists())
                Recovery.buildIndexes(directory, baseOffset, indexIntervalBytes, segmentIndexBytes);
        }
        OpenPartition opened = new OpenPartition(
            Opening.partition(directory, indexIntervalBytes, segmentIndexBytes, logStartOffset));
        for (LogSegment segment : opened.segments)
            segment.setLastModified(fileTimeMs);
        return opened;
    }

    /** Leaves the index files without the zeros behind the last entry that the active segment's have while open. */
    void close() throws IOException {
        LogSegment active = segments.get(segments.size() - 1);
        active.offsetIndex().trimToValidSize();
        active.timeIndex().trimToValidSize();
        abandon();
    }

    /** Lets go of a partition whose directory may be gone, or be another's by now. */
    void abandon() {
        log.abandon();
    }

    String describe() {
        StringBuilder reply = new StringBuilder();
        reply.append('\t').append(log.logStartOffset()).append('\t').append(log.logEndOffset());
        for (LogSegment segment : segments)
            reply.append('\t').append(segment.baseOffset());
        return reply.toString();
    }

    String updateHighWatermark(long offset) throws IOException {
        return "\t" + log.updateHighWatermark(offset);
    }

    /** All batches of a segment, and the largest timestamp of each as one more number. */
    String batches(long baseOffset) {
        LogSegment segment = segment(baseOffset);
        StringBuilder reply = new StringBuilder();
        for (FileChannelRecordBatch batch : segment.log().batches())
            reply.append('\t').append(
                Answers.guarded(0, ignored -> Answers.numbers(segment, batch) + " " + batch.maxTimestamp()));
        return reply.toString();
    }

    /** Answers of the whole partition. */
    String answer(String kind, long[] targets) {
        Answers.Question question = switch (kind) {
            // The batch that a fetch begins with and the floor entry in its segment, or "empty".
            case "fetch" -> offset -> fetch(offset, FetchIsolation.LOG_END);
            case "fetch-committed" -> offset -> fetch(offset, FetchIsolation.HIGH_WATERMARK);
            // The same, and the first record that a consumer would show.
            case "record" -> this::firstRecord;
            // Record and batch; no batch for -1 and -2.
            case "time" -> this::recordByTimestamp;
            // The batch that a search for a timestamp looks into first; not for -1 and -2.
            case "time-batch" -> this::batchByTimestamp;
            // Base offset of the segment, floor entry.
            case "offset-entry" -> this::offsetEntry;
            // Base offset of the segment, floor entry of its time index, the position that follows from it.
            case "time-entry" -> this::timeEntry;
            default -> throw new IllegalArgumentException("Unknown question " + kind);
        };
        return Answers.answers(question, targets);
    }

    /** Answers of one segment by the methods of {@link LogSegment} and its indexes. */
    String answer(String kind, long baseOffset, long startingOffset, long[] targets) {
        LogSegment segment = segment(baseOffset);
        Answers.Question question = switch (kind) {
            // Base offset, position and size.
            case "translate" -> offset -> Answers.numbers(segment.translateOffset(offset));
            case "find" -> time -> Answers.numbers(segment.findOffsetByTimestamp(time, startingOffset));
            case "offset-entry" -> offset -> Answers.numbers(segment.offsetIndex().lookup(offset));
            case "time-entry" -> time -> Answers.numbers(segment.timeIndex().lookup(time));
            // The largest timestamp in the form of an entry; one target, which is ignored.
            case "largest" -> ignored -> Answers.numbers(segment.readMaxTimestampAndOffsetSoFar());
            default -> throw new IllegalArgumentException("Unknown question " + kind);
        };
        return Answers.answers(question, targets);
    }

    private String fetch(long offset, FetchIsolation isolation) throws IOException {
        // No bytes but one batch, whatever its size.
        FetchDataInfo fetched = log.read(offset, 1, isolation, true);
        if (fetched.records.sizeInBytes() == 0)
            return Answers.EMPTY;
        LogSegment segment = segment(fetched.fetchOffsetMetadata.segmentBaseOffset);
        int position = fetched.fetchOffsetMetadata.relativePositionInSegment;
        FileChannelRecordBatch batch = segment.log().batchesFrom(position).iterator().next();
        agree(fetched.fetchOffsetMetadata.messageOffset == KafkaLog.nameOfRead(offset, batch.baseOffset())
            && fetched.records.sizeInBytes() == batch.sizeInBytes());
        return Answers.numbers(segment, batch) + " " + Answers.numbers(segment.offsetIndex().lookup(offset));
    }

    private String firstRecord(long offset) throws IOException {
        FetchDataInfo fetched = log.read(offset, 1, FetchIsolation.LOG_END, true);
        if (fetched.records.sizeInBytes() == 0)
            return Answers.EMPTY;
        LogSegment segment = segment(fetched.fetchOffsetMetadata.segmentBaseOffset);
        int position = fetched.fetchOffsetMetadata.relativePositionInSegment;
        while (true) {
            for (FileChannelRecordBatch batch : segment.log().batchesFrom(position))
                for (Record record : batch)
                    if (record.offset() >= offset)
                        return Answers.numbers(segment, batch) + " "
                            + Answers.numbers(segment.offsetIndex().lookup(offset)) + " "
                            + Answers.numbers(record, batch);
            int next = segments.indexOf(segment) + 1;
            if (next == segments.size())
                return Answers.NOTHING;
            segment = segments.get(next);
            LogOffsetPosition found = segment.translateOffset(offset);
            position = found == null ? segment.size() : found.position;
        }
    }

    private String recordByTimestamp(long time) throws IOException {
        if (time < ListOffsetsRequest.MAX_TIMESTAMP)
            throw new IllegalArgumentException("No time, and nothing that a client may ask for without tiered storage");
        Optional<TimestampAndOffset> found = log.fetchOffsetByTimestamp(time);
        if (found.isEmpty() || time == ListOffsetsRequest.LATEST_TIMESTAMP
                || time == ListOffsetsRequest.EARLIEST_TIMESTAMP)
            return Answers.numbers(found);
        if (time == ListOffsetsRequest.MAX_TIMESTAMP) {
            LogSegment segment = segmentOfLargest();
            FileChannelRecordBatch batch = batchOfLargest(segment);
            agree(batch.offsetOfMaxTimestamp().equals(Optional.of(found.get().offset)));
            return Answers.numbers(found) + " " + Answers.numbers(segment, batch);
        }
        LogSegment segment = segmentByTimestamp(time);
        for (FileChannelRecordBatch batch : segment.log().batchesFrom(positionOf(segment, time)))
            if (batch.maxTimestamp() >= time && batch.lastOffset() >= log.logStartOffset())
                for (Record record : batch)
                    if (record.timestamp() >= time && record.offset() >= log.logStartOffset()) {
                        agree(Answers.numbers(record, batch).equals(Answers.numbers(found)));
                        return Answers.numbers(found) + " " + Answers.numbers(segment, batch);
                    }
        throw new AssertionError("The reference program finds no batch with the record that Kafka found");
    }

    private LogSegment segmentOfLargest() throws IOException {
        LogSegment latest = segments.get(0);
        for (LogSegment segment : segments)
            if (segment.maxTimestampSoFar() > latest.maxTimestampSoFar())
                latest = segment;
        return latest;
    }

    private FileChannelRecordBatch batchOfLargest(LogSegment segment) throws IOException {
        TimestampOffset largest = segment.readMaxTimestampAndOffsetSoFar();
        int position = position(segment, largest.indexValue());
        for (FileChannelRecordBatch batch : segment.log().batchesFrom(position))
            if (batch.maxTimestamp() == largest.indexKey())
                return batch;
        return null;
    }

    private String batchByTimestamp(long time) throws IOException {
        if (time == ListOffsetsRequest.MAX_TIMESTAMP) {
            FileChannelRecordBatch batch = batchOfLargest(segmentOfLargest());
            return batch == null ? Answers.NOTHING : Answers.numbers(segmentOfLargest(), batch);
        }
        LogSegment segment = segmentByTimestamp(time);
        if (segment == null)
            return Answers.NOTHING;
        for (FileChannelRecordBatch batch : segment.log().batchesFrom(positionOf(segment, time)))
            if (batch.maxTimestamp() >= time && batch.lastOffset() >= log.logStartOffset())
                return Answers.numbers(segment, batch);
        return Answers.NOTHING;
    }

    private String offsetEntry(long offset) throws IOException {
        LogSegment floor = null;
        for (LogSegment segment : segments)
            if (segment.baseOffset() <= offset)
                floor = segment;
        if (floor == null)
            return Answers.NOTHING;
        return floor.baseOffset() + " " + Answers.numbers(floor.offsetIndex().lookup(offset));
    }

    private String timeEntry(long time) throws IOException {
        LogSegment segment = segmentByTimestamp(time);
        if (segment == null)
            return Answers.NOTHING;
        return segment.baseOffset() + " " + Answers.numbers(segment.timeIndex().lookup(time)) + " "
            + positionOf(segment, time);
    }

    private LogSegment segmentByTimestamp(long time) throws IOException {
        for (LogSegment segment : segments)
            if (segment.largestTimestamp() >= time)
                return segment;
        return null;
    }

    private int positionOf(LogSegment segment, long time) throws IOException {
        return position(segment, Math.max(segment.timeIndex().lookup(time).indexValue(), log.logStartOffset()));
    }

    private static int position(LogSegment segment, long offset) throws IOException {
        return (int) segment.offsetIndex().lookup(offset).indexValue();
    }

    private LogSegment segment(long baseOffset) {
        for (LogSegment segment : segments)
            if (segment.baseOffset() == baseOffset)
                return segment;
        throw new IllegalArgumentException("There is no segment " + baseOffset);
    }

    private static void agree(boolean agreed) {
        if (!agreed)
            throw new AssertionError("The reference program's own iteration disagrees with Kafka");
    }
}
