import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** The {@code key=value} options of a request. */
final class Options {
    private final Map<String, String> values = new TreeMap<>();

    Options(List<String> words) {
        for (String word : words) {
            int equals = word.indexOf('=');
            values.put(word.substring(0, equals), word.substring(equals + 1));
        }
    }

    Map<String, String> all() {
        return values;
    }

    String text(String key) {
        String value = values.get(key);
        if (value == null)
            throw new IllegalArgumentException("the option " + key + " is missing");
        return value;
    }

    int number(String key) {
        return Integer.parseInt(text(key));
    }

    long bigNumber(String key) {
        return Long.parseLong(text(key));
    }

    boolean flag(String key) {
        return Boolean.parseBoolean(text(key));
    }
}
