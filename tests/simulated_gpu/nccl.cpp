// libnccl.so.2 for simulated GPUs: ranks are processes of one machine that meet in a file of shared memory. As NCCL's own, calls are
// given to a stream and answer at once; a rank that does not come is waited for until the communicator is aborted.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "memory.h"
#include "order.h"
#include "streams.h"

namespace simulated {
namespace {

constexpr int kSuccess = 0, kInvalid = 4, kInProgress = 7;
constexpr int kMostRanks = 8;
constexpr size_t kPiece = 1 << 20;

struct UniqueId {
  char words[128];
};

// What the ranks share: who is there, a barrier, and a piece of memory for each.
struct Meeting {
  std::atomic<int> here;
  std::atomic<int> waiting;
  std::atomic<uint64_t> round;
  char pieces[kMostRanks][kPiece];
};

struct Aborted {};

struct Comm {
  Meeting* meeting;
  int rank, count, device;
  std::atomic<bool> aborted{false};

  void wait_until(const std::function<bool()>& holds) const {
    while (!holds()) {
      if (aborted) throw Aborted();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // All ranks have come here.
  void barrier() const {
    const uint64_t round = meeting->round;
    if (meeting->waiting.fetch_add(1) + 1 == count) {
      meeting->waiting = 0;
      meeting->round = round + 1;
    } else {
      wait_until([&] { return meeting->round != round; });
    }
  }
};

at::ScalarType kind_of(int type) {
  switch (type) {
    case 0: return at::kChar;
    case 1: return at::kByte;
    case 2: return at::kInt;
    case 4: return at::kLong;
    case 6: return at::kHalf;
    case 7: return at::kFloat;
    case 8: return at::kDouble;
    default: return at::kBFloat16;
  }
}

// Every rank shows its tensor piece by piece; `take` is told where each rank's piece lies, and where in the tensor.
using Take = std::function<void(char* const* pieces, size_t at, size_t bytes)>;

void exchange(const Comm& comm, const char* mine, size_t bytes, const Take& take) {
  char* pieces[kMostRanks];
  for (int rank = 0; rank < comm.count; rank++) pieces[rank] = comm.meeting->pieces[rank];
  for (size_t at = 0; at < bytes; at += kPiece) {
    const size_t size = std::min(kPiece, bytes - at);
    if (mine != nullptr) std::memcpy(pieces[comm.rank], mine + at, size);
    comm.barrier();
    take(pieces, at, size);
    comm.barrier();
  }
}

// The ranks' pieces added up in their order (or the greatest of each number), into `out`.
void combine(const Comm& comm, char* const* pieces, size_t bytes, int type, int operation, char* out) {
  const auto kind = kind_of(type);
  const int64_t count = static_cast<int64_t>(bytes / at::elementSize(kind));
  const auto piece = [&](int rank) { return at::from_blob(pieces[rank], {count}, kind); };
  at::Tensor sum = piece(0).clone();
  for (int rank = 1; rank < comm.count; rank++) operation == 2 ? at::maximum_out(sum, sum, piece(rank)) : sum.add_(piece(rank));
  at::from_blob(out, {count}, kind).copy_(sum);
}

// Notes what the call uses and gives it to the stream.
int give(Comm* comm, void* stream, const void* from, void* to, const char* what, std::function<void()> work) {
  const StreamName name{comm->device, reinterpret_cast<int64_t>(stream) - 1};
  if (comm->aborted || device_of(from) != comm->device || device_of(to) != comm->device) return kInvalid;
  try {
    order().next(name);
    order().read(uses_of(from), name, what);
    order().write(uses_of(to), name, what);
  } catch (const std::exception& error) {  // nothing may be thrown over NCCL's face
    std::fprintf(stderr, "simulated GPU: %s\n", error.what());
    std::abort();
  }
  enqueue(name, [work = std::move(work)] {
    try {
      work();
    } catch (const Aborted&) {
    }
  });
  return kSuccess;
}

}  // namespace
}  // namespace simulated

using namespace simulated;

extern "C" {

int ncclGetUniqueId(UniqueId* id) {
  std::memset(id, 0, sizeof *id);
  std::random_device random;
  std::snprintf(id->words, sizeof id->words, "/ppo-simulated-nccl-%08x%08x", random(), random());
  const int file = shm_open(id->words, O_CREAT | O_EXCL | O_RDWR, 0600);
  const bool made = file >= 0 && ftruncate(file, sizeof(Meeting)) == 0;
  if (file >= 0) close(file);
  return made ? kSuccess : kInvalid;
}

int ncclCommInitRankConfig(void** out, int count, UniqueId id, int rank, void*) {
  const int file = shm_open(id.words, O_RDWR, 0);
  if (file < 0 || count > kMostRanks) return kInvalid;
  void* at = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) return kInvalid;
  auto* comm = new Comm{static_cast<Meeting*>(at), rank, count, current_device()};
  if (comm->meeting->here.fetch_add(1) + 1 == count) shm_unlink(id.words);
  *out = comm;
  return kInProgress;
}

int ncclCommGetAsyncError(void* it, int* code) {
  const auto* comm = static_cast<Comm*>(it);
  *code = comm->meeting->here < comm->count ? kInProgress : kSuccess;
  return kSuccess;
}

// Its memory stays: the stream's thread may be in it.
int ncclCommAbort(void* it) {
  static_cast<Comm*>(it)->aborted = true;
  return kSuccess;
}

const char* ncclGetErrorString(int code) { return code == kInvalid ? "invalid argument" : "no error"; }

const char* ncclGetLastError(void*) { return ""; }

int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* it, void* stream) {
  auto* comm = static_cast<Comm*>(it);
  return give(comm, stream, from, to, "ncclAllReduce", [=] {
    char* out = static_cast<char*>(of_host(to));
    exchange(*comm, static_cast<char*>(of_host(from)), count * at::elementSize(kind_of(type)),
             [&](char* const* pieces, size_t at, size_t bytes) { combine(*comm, pieces, bytes, type, operation, out + at); });
  });
}

int ncclReduce(const void* from, void* to, size_t count, int type, int operation, int root, void* it, void* stream) {
  auto* comm = static_cast<Comm*>(it);
  return give(comm, stream, from, to, "ncclReduce", [=] {
    char* out = static_cast<char*>(of_host(to));
    exchange(*comm, static_cast<char*>(of_host(from)), count * at::elementSize(kind_of(type)),
             [&](char* const* pieces, size_t at, size_t bytes) {
               if (comm->rank == root) combine(*comm, pieces, bytes, type, operation, out + at);
             });
  });
}

int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* it, void* stream) {
  auto* comm = static_cast<Comm*>(it);
  return give(comm, stream, from, to, "ncclBroadcast", [=] {
    char* out = static_cast<char*>(of_host(to));
    const char* mine = comm->rank == root ? static_cast<char*>(of_host(from)) : nullptr;
    exchange(*comm, mine, count * at::elementSize(kind_of(type)),
             [&](char* const* pieces, size_t at, size_t bytes) { std::memcpy(out + at, pieces[root], bytes); });
  });
}

int ncclAllGather(const void* from, void* to, size_t count, int type, void* it, void* stream) {
  auto* comm = static_cast<Comm*>(it);
  return give(comm, stream, from, to, "ncclAllGather", [=] {
    char* out = static_cast<char*>(of_host(to));
    const size_t part = count * at::elementSize(kind_of(type));
    exchange(*comm, static_cast<char*>(of_host(from)), part, [&](char* const* pieces, size_t at, size_t bytes) {
      for (int rank = 0; rank < comm->count; rank++) std::memcpy(out + rank * part + at, pieces[rank], bytes);
    });
  });
}

}  // extern "C"
