package headrace;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import java.io.IOException;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.api.java.UDF1;

/** Reads fields of JSON objects as texts, with the results of the step `fields` in Python, in one pass over the bytes.
    Spark's `from_json` creates a parser with buffers and a row for every document. */
public final class JsonFields implements UDF1 {
    private static final JsonFactory JSON = factory();
    private static final int BYTE_ORDER_MARK = 0xEF;

    private final Node root = new Node();
    private final int count;

    /** A path is a list of names. */
    public JsonFields(List paths) {
        count = paths.size();
        for (int place = 0; place < count; place++) {
            Node node = root;
            List path = (List) paths.get(place);
            for (int depth = 0; depth < path.size(); depth++) {
                node = node.at((String) path.get(depth));
            }
            node.places = Arrays.copyOf(node.places, node.places.length + 1);
            node.places[node.places.length - 1] = place;
        }
    }

    private static JsonFactory factory() {
        JsonFactory factory = new JsonFactory();
        factory.configure(JsonFactory.Feature.INTERN_FIELD_NAMES, false);
        factory.configure(JsonFactory.Feature.FAIL_ON_SYMBOL_HASH_OVERFLOW, false);
        return factory.setStreamReadConstraints(StreamReadConstraints.builder().maxStringLength(Integer.MAX_VALUE)
            .maxNumberLength(Integer.MAX_VALUE).maxNameLength(Integer.MAX_VALUE).build());
    }

    /** One text per path; only nulls if the document is not a JSON object. */
    public Object call(Object document) {
        byte[] text = (byte[]) document;
        byte[][] found = text == null ? null : read(text);
        if (found == null && text != null) {
            byte[] valid = new String(text, StandardCharsets.UTF_8).getBytes(StandardCharsets.UTF_8);
            found = Arrays.equals(text, valid) ? null : read(valid);
        }
        return found == null ? new byte[count][] : found;
    }

    private byte[][] read(byte[] text) {
        byte[][] found = new byte[count][];
        if (hasOtherEncoding(text) || hasLoneSurrogate(text)) {
            return null;
        }
        try {
            JsonParser parser = JSON.createParser(text);
            try {
                if (parser.nextToken() == JsonToken.START_OBJECT) {
                    read(parser, root, text, found);
                    return parser.nextToken() == null ? found : null;
                }
            } finally {
                parser.close();
            }
        } catch (IOException error) {
            // not JSON
        }
        return null;
    }

    /** Whether it begins with bytes that the parser would take for another encoding; no valid JSON does. */
    private static boolean hasOtherEncoding(byte[] text) {
        for (int place = 0; place < text.length && place < 4; place++) {
            if (text[place] == 0) {
                return true;
            }
        }
        return text.length > 0 && (text[0] & 0xFF) >= BYTE_ORDER_MARK;
    }

    /** Whether it has an escaped lone surrogate, which the parser accepts and which is not a valid text. */
    private static boolean hasLoneSurrogate(byte[] bytes) {
        String text = new String(bytes, StandardCharsets.ISO_8859_1);
        if (text.indexOf("\\ud") < 0 && text.indexOf("\\uD") < 0) {
            return false;
        }
        int high = -1;
        for (int place = text.indexOf('\\'); place >= 0 && place + 6 <= text.length();) {
            boolean escaped = text.charAt(place + 1) == 'u';
            int code = escaped ? code(text, place + 2) : 0;
            if (Character.isLowSurrogate((char) code) != (high == place)) {
                return true;
            }
            place += escaped ? 6 : 2;
            high = Character.isHighSurrogate((char) code) ? place : -1;
            int next = text.indexOf('\\', place);
            if (high >= 0 && next != high) {
                return true;
            }
            place = next;
        }
        return high >= 0;
    }

    /** The value of four hexadecimal digits; the parser refuses other characters. */
    private static int code(String text, int place) {
        int code = 0;
        for (int digit = place; digit < place + 4; digit++) {
            code = code * 16 + Math.max(0, Character.digit(text.charAt(digit), 16));
        }
        return code;
    }

    private static void read(JsonParser parser, Node node, byte[] text, byte[][] found) throws IOException {
        while (parser.nextToken() == JsonToken.FIELD_NAME) {
            Node wanted = (Node) node.inner.get(parser.currentName());
            JsonToken token = parser.nextToken();
            if (wanted == null) {
                parser.skipChildren();
                continue;
            }
            // of a duplicate name the last value counts
            wanted.clear(found);
            if (token == JsonToken.START_OBJECT || token == JsonToken.START_ARRAY) {
                int start = (int) parser.currentTokenLocation().getByteOffset();
                if (token == JsonToken.START_OBJECT && !wanted.inner.isEmpty()) {
                    read(parser, wanted, text, found);
                } else {
                    parser.skipChildren();
                }
                if (wanted.places.length > 0) {
                    wanted.put(found, onOneLine(text, start, (int) parser.currentLocation().getByteOffset()));
                }
            } else if (token != JsonToken.VALUE_NULL && wanted.places.length > 0) {
                wanted.put(found, parser.getText().getBytes(StandardCharsets.UTF_8));
            }
        }
    }

    /** Removes line breaks, which are only between tokens: in strings they are escaped. */
    private static byte[] onOneLine(byte[] text, int start, int end) {
        byte[] line = new byte[end - start];
        int length = 0;
        for (int place = start; place < end; place++) {
            if (text[place] != '\n' && text[place] != '\r') {
                line[length++] = text[place];
            }
        }
        return length == line.length ? line : Arrays.copyOf(line, length);
    }

    /** A name in the tree of paths: the results that get its value, and the names below it. */
    private static final class Node implements Serializable {
        private final Map inner = new HashMap();
        private int[] places = new int[0];

        private Node at(String name) {
            Node found = (Node) inner.get(name);
            if (found == null) {
                found = new Node();
                inner.put(name, found);
            }
            return found;
        }

        private void put(byte[][] found, byte[] text) {
            for (int number = 0; number < places.length; number++) {
                found[places[number]] = text;
            }
        }

        private void clear(byte[][] found) {
            put(found, null);
            for (Iterator nodes = inner.values().iterator(); nodes.hasNext();) {
                ((Node) nodes.next()).clear(found);
            }
        }
    }
}
