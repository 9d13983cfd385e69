package bench;

import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The workloads of the bench that the peer's own program does not have, for Kafka Streams: a count of
 * windows, a join with a table and a join of two streams, all behind the same deduplication. It is compiled among the
 * peer's classes, and takes their configuration and their deduplication as they are, so that these
 * figures stand beside the others.
 */
final class Operators {
  private static final Serde<byte[]> BYTES = Serdes.ByteArray();

  private Operators() {}

  public static void main(String[] argv) throws Exception {
    Map<String, String> args = new TreeMap<>();
    for (String a : argv) {
      int eq = a.indexOf('=');
      args.put(a.substring(2, eq), a.substring(eq + 1));
    }
    Method config = App.class.getDeclaredMethod("config", Map.class);
    config.setAccessible(true);
    KafkaStreams streams =
        new KafkaStreams(
            topology(args.get("workload"), args.get("in"), args.get("out")),
            (Properties) config.invoke(null, args));
    streams.setStateListener((now, before) -> App.log("state=" + now));
    streams.setUncaughtExceptionHandler(
        e -> {
          App.log("uncaught=" + e);
          return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler
              .StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    Runtime.getRuntime()
        .addShutdownHook(
            new Thread(
                () -> {
                  streams.close(Duration.ofSeconds(60));
                  App.log("closed");
                }));
    streams.start();
  }

  private static Topology topology(String workload, String in, String out) throws Exception {
    StreamsBuilder builder = new StreamsBuilder();
    KStream<byte[], byte[]> unique =
        builder
            .stream(in, Consumed.with(BYTES, BYTES))
            .peek((k, v) -> App.FirstRecord.seen())
            .processValues(dedup());
    switch (workload) {
      case "w3-window" -> windows(unique, out);
      case "w4-join" -> join(unique, out);
      case StreamJoin.WORKLOAD -> joinStreams(unique, out);
      default -> throw new IllegalArgumentException("workload " + workload);
    }
    return builder.build();
  }

  /** Counts per key and hour, every update; the window is taken off the key, as the checker knows none. */
  private static void windows(KStream<byte[], byte[]> unique, String out) {
    unique
        .groupByKey(Grouped.with(BYTES, BYTES))
        .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofHours(1), Duration.ofMinutes(10)))
        .count(
            Materialized.<byte[], Long, WindowStore<Bytes, byte[]>>as("counts")
                .withKeySerde(BYTES)
                .withValueSerde(Serdes.Long()))
        .toStream((key, n) -> key.key())
        .to(out, Produced.with(BYTES, Serdes.Long()));
  }

  /** Each record makes the row of its key, and is then joined with it. */
  private static void join(KStream<byte[], byte[]> unique, String out) {
    KTable<byte[], byte[]> rows =
        unique.toTable(
            Materialized.<byte[], byte[], KeyValueStore<Bytes, byte[]>>as("rows")
                .withKeySerde(BYTES)
                .withValueSerde(BYTES));
    unique
        .join(rows, (value, row) -> row, Joined.with(BYTES, BYTES, BYTES))
        .to(out, Produced.with(BYTES, BYTES));
  }

  /** The two halves of the stream, joined. The stores are the DSL's persistent window stores. */
  private static void joinStreams(KStream<byte[], byte[]> unique, String out) {
    KStream<byte[], byte[]> left = unique.filter((key, value) -> StreamJoin.isLeft(value));
    KStream<byte[], byte[]> right = unique.filterNot((key, value) -> StreamJoin.isLeft(value));
    left.join(
            right,
            StreamJoin::joined,
            JoinWindows.ofTimeDifferenceAndGrace(StreamJoin.WINDOW, StreamJoin.GRACE),
            StreamJoined.with(BYTES, BYTES, BYTES).withStoreName("joined"))
        .to(out, Produced.with(BYTES, BYTES));
  }

  @SuppressWarnings("unchecked")
  private static FixedKeyProcessorSupplier<byte[], byte[], byte[]> dedup() throws Exception {
    Constructor<?> c = Class.forName("bench.App$WindowDedup").getDeclaredConstructor();
    c.setAccessible(true);
    return (FixedKeyProcessorSupplier<byte[], byte[], byte[]>) c.newInstance();
  }
}
