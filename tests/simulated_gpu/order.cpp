#include "order.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace simulated {

namespace {

// Of each device.
thread_local std::map<int, int64_t> current_streams;

void learn(Clock& clock, const Clock& from) {
  for (const auto& [stream, time] : from) clock[stream] = std::max(clock[stream], time);
}

std::string name(StreamName stream) {
  return "stream " + std::to_string(stream.second) + " of GPU " + std::to_string(stream.first);
}

}  // namespace

Order& order() {
  static Order* the = new Order();  // never destroyed: tensors are freed until the process ends
  return *the;
}

StreamName Order::current(int device) const {
  const auto found = current_streams.find(device);
  return {device, found == current_streams.end() ? 0 : found->second};
}

void Order::set_current(StreamName stream) { current_streams[stream.first] = stream.second; }

StreamName Order::fresh(int device) {
  std::lock_guard lock(mutex_);
  return {device, ++streams_};
}

Clock& Order::clock(StreamName stream) { return clocks_[stream]; }

uint64_t Order::next(StreamName stream) {
  std::lock_guard lock(mutex_);
  auto& known = clock(stream);
  learn(known, host_);  // the host asks for it after all that it has waited for
  return ++known[stream];
}

bool Order::sees(StreamName stream, StreamName other, uint64_t time) { return stream == other || clock(stream)[other] >= time; }

void Order::read(Uses& uses, StreamName stream, const std::string& what) {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(uses.written == 0 || sees(stream, uses.writer, uses.written), "a race: ", what, " on ", name(stream),
              " reads what ", uses.by, " on ", name(uses.writer), " wrote, and nothing orders the two");
  uses.reads[stream] = clock(stream)[stream];
}

void Order::write(Uses& uses, StreamName stream, const std::string& what) {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(uses.written == 0 || sees(stream, uses.writer, uses.written), "a race: ", what, " on ", name(stream),
              " overwrites what ", uses.by, " on ", name(uses.writer), " wrote, and nothing orders the two");
  for (const auto& [reader, time] : uses.reads)
    TORCH_CHECK(sees(stream, reader, time), "a race: ", what, " on ", name(stream), " overwrites what ", uses.by, " on ",
                name(uses.writer), " wrote while ", name(reader), " may still read it");
  uses.reads.clear();
  uses.writer = stream;
  uses.written = clock(stream)[stream];
  uses.by = what;
}

std::string Order::freed(const Uses& uses) {
  std::lock_guard lock(mutex_);
  auto used = uses.reads;
  if (uses.written != 0) used[uses.writer] = std::max(used[uses.writer], uses.written);
  for (const auto& [stream, time] : used) {
    const bool waits = uses.lent.count(stream) != 0 || host_[stream] >= time || sees(uses.home, stream, time);
    if (!waits) return "memory of " + name(uses.home) + ", last written by " + uses.by + ", is freed while " + name(stream) + " may still use it";
  }
  return "";
}

Mark Order::mark(StreamName stream) {
  std::lock_guard lock(mutex_);
  next(stream);
  return {clock(stream)};
}

void Order::wait(StreamName stream, const Mark& mark) {
  std::lock_guard lock(mutex_);
  learn(clock(stream), mark.known);
}

void Order::passed(const Mark& mark) {
  std::lock_guard lock(mutex_);
  learn(host_, mark.known);
}

void Order::synchronize(StreamName stream) {
  std::lock_guard lock(mutex_);
  learn(host_, clock(stream));
}

}  // namespace simulated
