// What a GPU's streams were asked to do, in which order one sees what another wrote, and an error where nothing orders two uses of the
// same memory of which one writes: on a GPU that is a race, and the numbers are right on most days.
//
// Work is done at once here, so nothing really runs beside anything. Each stream counts what it was asked for, and knows how far it has
// come to see every other (a vector clock: Mattern, Virtual Time and Global States of Distributed Systems, 1989). It learns by waiting
// for an event, and from the host, which learns by waiting for a stream. The host's threads are taken to tell each other what they know:
// a thread that does not wait for the one that waited is not found out.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace simulated {

// A stream: its device and number. Number 0 is the one that all threads share which have none of their own.
using StreamName = std::pair<int, int64_t>;
using Clock = std::map<StreamName, uint64_t>;

// An event: what is known when it has passed.
struct Mark {
  Clock known;
};

// The uses of one block of memory since it was handed out.
struct Uses {
  StreamName home;  // the stream on which it was asked for: there it can be handed out anew at once
  StreamName writer;
  uint64_t written = 0;
  std::string by;  // the operator that wrote it last
  std::map<StreamName, uint64_t> reads;
  std::set<StreamName> lent;  // streams that its freeing waits for (recordDataPtrOnStream)
};

class Order {
 public:
  // The calling thread's stream of a device.
  StreamName current(int device) const;
  void set_current(StreamName stream);
  StreamName fresh(int device);

  // The next thing that a stream is asked for.
  uint64_t next(StreamName stream);
  void read(Uses& uses, StreamName stream, const std::string& what);
  void write(Uses& uses, StreamName stream, const std::string& what);
  // Empty, or why the memory cannot be given to somebody else now.
  std::string freed(const Uses& uses);

  Mark mark(StreamName stream);
  void wait(StreamName stream, const Mark& mark);
  // The host learns that an event has passed.
  void passed(const Mark& mark);
  // The host waits for all that the stream was asked for.
  void synchronize(StreamName stream);

 private:
  bool sees(StreamName stream, StreamName other, uint64_t time);
  Clock& clock(StreamName stream);

  std::recursive_mutex mutex_;
  std::map<StreamName, Clock> clocks_;
  Clock host_;
  int64_t streams_ = 0;
};

Order& order();

}  // namespace simulated
