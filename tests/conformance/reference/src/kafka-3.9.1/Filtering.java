import java.nio.file.Path;

/** Rewrites follow the filter of Kafka 4, which converts old messages to batches; this one does not. */
final class Filtering {
    private Filtering() {
    }

    static String run(Path file, Path output, String key, String[] fields, int from) {
        throw new UnsupportedOperationException("the filter is compared with Kafka 4");
    }
}
