package org.apache.kafka.clients.consumer.internals;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.StringJoiner;
import java.nio.charset.StandardCharsets;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.message.FetchResponseData.PartitionData;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/** What a consumer returns of a log: the broker's fetches, taken apart by the consumer's own class for them. */
public final class ConsumedRecords {
    private static final HexFormat HEX = HexFormat.of();
    private static final String NOTHING = "-";
    private static final TopicPartition PARTITION = new TopicPartition("topic", 0);
    private static final Metrics METRICS = new Metrics();

    private ConsumedRecords() {
    }

    /**
     * From an offset to the end, with checksums verified: a field {@code OFFSET:TIMESTAMP:TIMESTAMP_TYPE:EPOCH:KEY:VALUE}
     * for each record, with {@code :HEADER_KEY=HEADER_VALUE} for each header; then what the consumer throws, if anything.
     */
    public static String read(UnifiedLog log, long offset, boolean committed, int maxBytes) throws IOException {
        IsolationLevel level = committed ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED;
        FetchIsolation isolation = committed ? FetchIsolation.TXN_COMMITTED : FetchIsolation.HIGH_WATERMARK;
        FetchConfig config = new FetchConfig(1, maxBytes, 0, maxBytes, Integer.MAX_VALUE, true, "", level);
        StringJoiner reply = new StringJoiner("\t", "\t", "");
        long next = offset;
        while (true) {
            FetchDataInfo fetched = log.read(next, maxBytes, isolation, true);
            if (fetched.records.sizeInBytes() == 0)
                return reply.add(NOTHING).toString();
            ByteBuffer bytes = ByteBuffer.allocate(fetched.records.sizeInBytes());
            ((FileRecords) fetched.records).readInto(bytes, 0);
            PartitionData data = new PartitionData()
                .setRecords(MemoryRecords.readableRecords(bytes))
                .setAbortedTransactions(fetched.abortedTransactions.orElse(null));
            CompletedFetch fetch = fetch(data, next);
            try (Deserializers<byte[], byte[]> plain =
                    new Deserializers<>(new ByteArrayDeserializer(), new ByteArrayDeserializer(), METRICS)) {
                List<ConsumerRecord<byte[], byte[]>> records;
                do {
                    records = fetch.fetchRecords(config, plain, Integer.MAX_VALUE);
                    for (ConsumerRecord<byte[], byte[]> record : records)
                        reply.add(describe(record));
                } while (!records.isEmpty());
            } catch (RuntimeException fault) {
                return reply.add("!" + fault.getClass().getSimpleName() + " " + fault.getMessage()).toString();
            }
            if (fetch.nextFetchOffset() <= next)
                return reply.add("!Stuck " + next).toString();
            next = fetch.nextFetchOffset();
        }
    }

    private static CompletedFetch fetch(PartitionData data, long offset) {
        LogContext context = new LogContext();
        FetchMetricsManager metrics = new FetchMetricsManager(METRICS, new FetchMetricsRegistry());
        return new CompletedFetch(context.logger(ConsumedRecords.class),
            new SubscriptionState(context, AutoOffsetResetStrategy.NONE), BufferSupplier.NO_CACHING, PARTITION, data,
            new FetchMetricsAggregator(metrics, Set.of(PARTITION)), offset);
    }

    private static StringBuilder describe(ConsumerRecord<byte[], byte[]> record) {
        StringBuilder text = new StringBuilder();
        text.append(record.offset()).append(':').append(record.timestamp()).append(':')
            .append(record.timestampType().id).append(':').append(record.leaderEpoch().orElse(-1)).append(':')
            .append(hex(record.key())).append(':').append(hex(record.value()));
        for (Header header : record.headers())
            text.append(':').append(HEX.formatHex(header.key().getBytes(StandardCharsets.UTF_8))).append('=')
                .append(hex(header.value()));
        return text;
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? NOTHING : HEX.formatHex(bytes);
    }
}
