import java.io.Closeable;
import java.io.File;
import java.io.IOException;
import java.util.Optional;
import java.util.StringJoiner;

import org.apache.kafka.storage.internals.log.AbstractIndex;
import org.apache.kafka.storage.internals.log.LazyIndex;
import org.apache.kafka.storage.internals.log.OffsetIndex;
import org.apache.kafka.storage.internals.log.OffsetPosition;
import org.apache.kafka.storage.internals.log.TimeIndex;

/**
 * One index file of Kafka's and what is done with it, one operation after the other.
 *
 * An operation is a word and its numbers, blanks between them. Its answer is numbers, {@code -} for nothing, {@code ok},
 * {@code true} or {@code false}, or {@code !CLASS_NAME} of what was thrown; the operations behind it are done all the
 * same.
 */
final class Indexes {
    private static final String DONE = "ok";

    private Indexes() {
    }

    /** Kinds are {@code offset}, {@code time}, and {@code lazy-offset} and {@code lazy-time}. */
    static String run(String kind, File file, long baseOffset, String[] fields, int from) throws IOException {
        Operations operations = switch (kind) {
            case "offset" -> new OffsetOperations(file, baseOffset, false);
            case "time" -> new TimeOperations(file, baseOffset, false);
            case "lazy-offset" -> new OffsetOperations(file, baseOffset, true);
            case "lazy-time" -> new TimeOperations(file, baseOffset, true);
            default -> throw new IllegalArgumentException("Unknown kind of index " + kind);
        };
        StringJoiner reply = new StringJoiner("\t", "\t", "");
        for (int i = from; i < fields.length; i++) {
            String[] words = fields[i].split(" ");
            reply.add(Answers.guarded(0, ignored -> operations.run(words[0], words)));
        }
        operations.release();
        return reply.toString();
    }

    interface Operations {
        String run(String name, String[] words) throws IOException;

        void release() throws IOException;
    }

    /** What offset and time index share. */
    private abstract static class MappedOperations<T extends AbstractIndex> implements Operations {
        final File file;
        final long baseOffset;
        private final boolean lazy;
        T index;
        private LazyIndex<T> lazyIndex;

        private MappedOperations(File file, long baseOffset, boolean lazy) {
            this.file = file;
            this.baseOffset = baseOffset;
            this.lazy = lazy;
        }

        abstract T open(int maxSize, boolean writable) throws IOException;

        abstract LazyIndex<T> openLazily(int maxSize);

        abstract String runOwn(String name, String[] words) throws IOException;

        abstract String entry(int slot);

        @Override
        public String run(String name, String[] words) throws IOException {
            switch (name) {
                case "open":
                    release();
                    boolean writable = words.length < 3 || !words[2].equals("read-only");
                    if (lazy) {
                        lazyIndex = openLazily(Integer.parseInt(words[1]));
                        index = lazyIndex.get();
                    } else {
                        index = open(Integer.parseInt(words[1]), writable);
                    }
                    return DONE;
                case "truncate-to":
                    index.truncateTo(Long.parseLong(words[1]));
                    return DONE;
                case "resize":
                    return String.valueOf(index.resize(Integer.parseInt(words[1])));
                case "trim":
                    index.trimToValidSize();
                    return DONE;
                case "reset":
                    index.reset();
                    return DONE;
                case "sanity-check":
                    index.sanityCheck();
                    return DONE;
                case "is-full":
                    return String.valueOf(index.isFull());
                case "length":
                    return String.valueOf(index.length());
                case "max-entries":
                    return String.valueOf(index.maxEntries());
                case "entries":
                    StringJoiner all = new StringJoiner(" ");
                    for (int slot = 0; slot < index.entries(); slot++)
                        all.add(entry(slot));
                    return index.entries() == 0 ? Answers.NOTHING : all.toString();
                case "close":
                    Closeable closed = lazy ? lazyIndex : index;
                    index = null;
                    closed.close();
                    return DONE;
                default:
                    return runOwn(name, words);
            }
        }

        @Override
        public void release() {
            if (index != null)
                index.closeHandler();
            index = null;
        }
    }

    private static final class OffsetOperations extends MappedOperations<OffsetIndex> {
        private OffsetOperations(File file, long baseOffset, boolean lazy) {
            super(file, baseOffset, lazy);
        }

        @Override
        OffsetIndex open(int maxSize, boolean writable) throws IOException {
            return new OffsetIndex(file, baseOffset, maxSize, writable);
        }

        @Override
        LazyIndex<OffsetIndex> openLazily(int maxSize) {
            return LazyIndex.forOffset(file, baseOffset, maxSize);
        }

        @Override
        String entry(int slot) {
            return Answers.numbers(index.entry(slot));
        }

        @Override
        String runOwn(String name, String[] words) {
            switch (name) {
                case "truncate":
                    index.truncate();
                    return DONE;
                case "append":
                    index.append(Long.parseLong(words[1]), Integer.parseInt(words[2]));
                    return DONE;
                case "lookup":
                    return Answers.numbers(index.lookup(Long.parseLong(words[1])));
                case "upper-bound":
                    Optional<OffsetPosition> found = index.fetchUpperBoundOffset(
                        new OffsetPosition(Long.parseLong(words[1]), Integer.parseInt(words[2])),
                        Integer.parseInt(words[3]));
                    return found.map(Answers::numbers).orElse(Answers.NOTHING);
                case "last":
                    return String.valueOf(index.lastOffset());
                default:
                    throw new AssertionError("Unknown operation " + name);
            }
        }
    }

    private static final class TimeOperations extends MappedOperations<TimeIndex> {
        private TimeOperations(File file, long baseOffset, boolean lazy) {
            super(file, baseOffset, lazy);
        }

        @Override
        TimeIndex open(int maxSize, boolean writable) throws IOException {
            return new TimeIndex(file, baseOffset, maxSize, writable);
        }

        @Override
        LazyIndex<TimeIndex> openLazily(int maxSize) {
            return LazyIndex.forTime(file, baseOffset, maxSize);
        }

        @Override
        String entry(int slot) {
            return Answers.numbers(index.entry(slot));
        }

        @Override
        String runOwn(String name, String[] words) {
            switch (name) {
                case "truncate":
                    index.truncate();
                    return DONE;
                case "maybe-append":
                    index.maybeAppend(Long.parseLong(words[1]), Long.parseLong(words[2]),
                        words.length > 3 && words[3].equals("skip-full-check"));
                    return DONE;
                case "lookup":
                    return Answers.numbers(index.lookup(Long.parseLong(words[1])));
                case "last":
                    return Answers.numbers(index.lastEntry());
                default:
                    throw new AssertionError("Unknown operation " + name);
            }
        }
    }
}
