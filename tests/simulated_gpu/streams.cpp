#include "streams.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

namespace simulated {

namespace {

// A stream's thread runs until the process ends.
struct Worker {
  std::deque<std::function<void()>> queue;
  uint64_t given = 0;
  uint64_t done = 0;
};

std::mutex mutex;
std::condition_variable changed;

std::map<StreamName, Worker>& workers() {
  static auto* all = new std::map<StreamName, Worker>();
  return *all;
}

void work(Worker& worker) {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return !worker.queue.empty(); });
    const auto next = std::move(worker.queue.front());
    worker.queue.pop_front();
    lock.unlock();
    next();
    lock.lock();
    worker.done++;
    changed.notify_all();
  }
}

}  // namespace

void enqueue(StreamName stream, std::function<void()> work_of) {
  std::lock_guard lock(mutex);
  const bool fresh = workers().count(stream) == 0;
  auto& worker = workers()[stream];
  worker.queue.push_back(std::move(work_of));
  worker.given++;
  if (fresh) std::thread(work, std::ref(worker)).detach();
  changed.notify_all();
}

uint64_t given(StreamName stream) {
  std::lock_guard lock(mutex);
  const auto found = workers().find(stream);
  return found == workers().end() ? 0 : found->second.given;
}

bool is_done(StreamName stream, uint64_t count) {
  std::lock_guard lock(mutex);
  return count == 0 || workers()[stream].done >= count;
}

void wait_for(StreamName stream, uint64_t count) {
  std::unique_lock lock(mutex);
  if (count != 0) changed.wait(lock, [&] { return workers()[stream].done >= count; });
}

}  // namespace simulated
