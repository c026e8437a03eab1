import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

import org.apache.kafka.common.record.internal.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.internal.FileRecords.LogOffsetPosition;
import org.apache.kafka.common.record.internal.FileRecords.TimestampAndOffset;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.OffsetPosition;
import org.apache.kafka.storage.internals.log.TimestampOffset;

/**
 * What Kafka says, as text: numbers with blanks between them.
 *
 * A batch is the base offset of its segment, its own base offset, its last offset, position and size; a record is its
 * offset, timestamp and leader epoch (-1: none); an entry of an offset index is offset and position, of a time index
 * timestamp and offset; what {@code translateOffset} finds is base offset, position and size.
 */
final class Answers {
    static final String NOTHING = "-";
    static final String EMPTY = "empty";

    private Answers() {
    }

    static String numbers(LogSegment segment, FileChannelRecordBatch batch) {
        return segment.baseOffset() + " " + batch.baseOffset() + " " + batch.lastOffset() + " " + batch.position() + " "
            + batch.sizeInBytes();
    }

    static String numbers(Record record, FileChannelRecordBatch batch) {
        return record.offset() + " " + record.timestamp() + " " + batch.partitionLeaderEpoch();
    }

    static String numbers(Optional<TimestampAndOffset> found) {
        return found.map(at -> at.offset + " " + at.timestamp + " " + at.leaderEpoch.orElse(-1)).orElse(NOTHING);
    }

    static String numbers(LogOffsetPosition found) {
        return found == null ? NOTHING : found.offset + " " + found.position + " " + found.size;
    }

    static String numbers(OffsetPosition entry) {
        return entry.indexKey() + " " + entry.indexValue();
    }

    static String numbers(TimestampOffset entry) {
        return entry.indexKey() + " " + entry.indexValue();
    }

    static String answers(Question question, long[] targets) {
        List<String> reply = new ArrayList<>(targets.length + 1);
        reply.add("");
        for (long target : targets)
            reply.add(guarded(target, question));
        return String.join("\t", reply);
    }

    /** One question that Kafka cannot answer does not take the others with it; a fault of this program does. */
    static String guarded(long target, Question question) {
        try {
            return question.ask(target);
        } catch (AssertionError fault) {
            throw fault;
        } catch (Throwable refusal) {
            return "!" + refusal.getClass().getSimpleName();
        }
    }

    interface Question {
        String ask(long target) throws IOException;
    }
}
