package bench;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The input and the check of w5-streamjoin.
 *
 * <p>The input is that of the other workloads, with a time of its own: the records of a partition
 * are one millisecond apart, so that the matches depend neither on the speed of the loader nor on
 * the hour. An event's time is then its number.
 *
 * <p>An event is of the left stream or of the right one by a bit of its value. Two of them match if
 * they are one of each, have the same key and are at most WINDOW apart: one match for each record on
 * average.
 */
final class StreamJoin {
  static final String WORKLOAD = "w5-streamjoin";
  static final Duration WINDOW = Duration.ofMillis(2500);
  static final Duration GRACE = Duration.ofMillis(2500);
  private static final long GOLDEN = 0x9e3779b97f4a7c15L; // that of Data

  private StreamJoin() {}

  static boolean isLeft(byte[] value) {
    return (value[0] & 1) == 0;
  }

  /** A result: the left value and the right one behind it. */
  static byte[] joined(byte[] left, byte[] right) {
    byte[] both = Arrays.copyOf(left, left.length + right.length);
    System.arraycopy(right, 0, both, left.length, right.length);
    return both;
  }

  /** Makes the topic --in on --bootstrap anew, with --records records. */
  public static void main(String[] argv) throws Exception {
    Map<String, String> args = new TreeMap<>();
    for (String a : argv) {
      int eq = a.indexOf('=');
      args.put(a.substring(2, eq), a.substring(eq + 1));
    }
    String in = args.get("in");
    int records = Integer.parseInt(args.get("records"));
    Properties p = new Properties();
    p.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, args.get("bootstrap"));
    p.put(ProducerConfig.LINGER_MS_CONFIG, 20);
    p.put(ProducerConfig.BATCH_SIZE_CONFIG, 512 << 10);
    try (Admin admin = Admin.create(p)) {
      if (admin.listTopics().names().get().contains(in)) {
        admin.deleteTopics(List.of(in)).all().get();
        Thread.sleep(1000);
      }
      admin.createTopics(List.of(new NewTopic(in, Data.PARTITIONS, (short) 1))).all().get();
    }
    Data.Sequence[] sequences = Data.sequences();
    long first = System.currentTimeMillis() - records / Data.PARTITIONS;
    try (KafkaProducer<byte[], byte[]> producer =
        new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer())) {
      for (int i = 0; i < records; i++) {
        int partition = i % Data.PARTITIONS;
        int event = sequences[partition].next();
        ProducerRecord<byte[], byte[]> r =
            new ProducerRecord<>(
                in,
                partition,
                first + i / Data.PARTITIONS,
                Data.key(Data.keyNumber(partition, event)),
                Data.value(partition, event));
        r.headers().add(Data.ID_HEADER, Data.id(partition, event));
        producer.send(r);
      }
    }
    System.out.printf("loaded %d records, one each millisecond of a partition%n", records);
  }

  /** The pairs that must come of a partition's input, as left event &lt;&lt; 32 | right event, sorted. */
  private static long[] pairs(int partition, int[] input) {
    Map<Integer, List<Integer>> ofKey = new TreeMap<>();
    List<Long> pairs = new ArrayList<>();
    for (int at = 0; at < input.length; at++) {
      if (input[at] != at) continue; // a repeat: an event's number is its place
      List<Integer> before =
          ofKey.computeIfAbsent(Data.keyNumber(partition, at), k -> new ArrayList<>());
      boolean left = isLeft(Data.value(partition, at));
      for (int i = before.size() - 1; i >= 0 && at - before.get(i) <= WINDOW.toMillis(); i--) {
        int other = before.get(i);
        if (isLeft(Data.value(partition, other)) == left) continue;
        pairs.add(left ? pair(at, other) : pair(other, at));
      }
      before.add(at);
    }
    return pairs.stream().mapToLong(Long::longValue).sorted().toArray();
  }

  private static long pair(int left, int right) {
    return (long) left << 32 | right;
  }

  /**
   * Reads the whole output. Every pair of the input must be there once and nothing else: with both
   * values, the key, and the later one of the two times. The results of a key must come in the order
   * of these times.
   */
  static String verify(KafkaConsumer<byte[], byte[]> consumer, String out, int[][] input) {
    long[][] want = new long[Data.PARTITIONS][];
    long expected = 0;
    int records = 0;
    for (int p = 0; p < Data.PARTITIONS; p++) {
      want[p] = pairs(p, input[p]);
      expected += want[p].length;
      records += input[p].length;
    }
    long[][] got = new long[Data.PARTITIONS][1024];
    int[] size = new int[Data.PARTITIONS];
    int[] latest = new int[Data.KEYS];
    long outputs = 0;
    long foreign = 0; // no pair of this input
    long misplaced = 0; // another key or another time
    long disordered = 0;
    long start = Long.MIN_VALUE; // the time of event 0
    try (consumer) {
      Map<TopicPartition, Long> ends = consumer.endOffsets(consumer.assignment());
      while (ends.entrySet().stream().anyMatch(e -> consumer.position(e.getKey()) < e.getValue())) {
        for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
          outputs++;
          long left = event(r.value(), 0, input);
          long right = event(r.value(), Data.VALUE_BYTES, input);
          int p = (int) (left >> 40);
          if (left < 0
              || right < 0
              || p != (int) (right >> 40)
              || r.value().length != 2 * Data.VALUE_BYTES) {
            foreign++;
            continue;
          }
          if (size[p] == got[p].length) got[p] = Arrays.copyOf(got[p], 2 * size[p]);
          got[p][size[p]++] = pair((int) left, (int) right);
          int later = Math.max((int) left, (int) right);
          int key = Data.keyNumber(p, later);
          if (start == Long.MIN_VALUE) start = r.timestamp() - later;
          if (r.timestamp() - later != start || !Arrays.equals(r.key(), Data.key(key))) misplaced++;
          if (later < latest[key]) disordered++;
          latest[key] = later;
        }
      }
    }
    long missing = 0;
    long repeated = 0; // or of no match
    for (int p = 0; p < Data.PARTITIONS; p++) {
      long[] g = Arrays.copyOf(got[p], size[p]);
      Arrays.sort(g);
      int w = 0;
      int i = 0;
      while (w < want[p].length || i < g.length) {
        if (i == g.length || w < want[p].length && want[p][w] < g[i]) {
          missing++;
          w++;
        } else if (w == want[p].length || g[i] < want[p][w]) {
          repeated++;
          i++;
        } else {
          w++;
          i++;
        }
      }
    }
    boolean good =
        expected > 0
            && outputs == expected
            && missing + repeated + foreign + misplaced + disordered == 0;
    return String.format(
        "%s inputs=%d outputs=%d expected=%d missing=%d repeated=%d foreign=%d misplaced=%d"
            + " disordered=%d",
        good ? "CORRECT" : "WRONG", records, outputs, expected, missing, repeated, foreign,
        misplaced, disordered);
  }

  /** The event whose whole value stands there, as partition &lt;&lt; 40 | event; -1 if none does. */
  private static long event(byte[] values, int from, int[][] input) {
    if (values == null || values.length < from + Data.VALUE_BYTES) return -1;
    // A value begins with the second half of its event's ID, of which the first half follows.
    long second = ByteBuffer.wrap(values).getLong(from);
    long first = Data.unmix(second) - GOLDEN;
    long found = Data.decode(ByteBuffer.allocate(16).putLong(first).putLong(second).array());
    long p = found >> 40;
    int e = (int) found;
    if (p < 0 || p >= input.length || e < 0 || e >= input[(int) p].length) return -1;
    byte[] value = Data.value((int) p, e);
    boolean same =
        Arrays.equals(values, from, from + Data.VALUE_BYTES, value, 0, Data.VALUE_BYTES);
    return same ? found : -1;
  }
}
