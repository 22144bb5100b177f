//! OpenMP's teams of threads.

use std::num::NonZero;

use tokio::task::JoinError;

unsafe extern "C" {
    fn ppo_release_team();
}

/// Turns of the loop in which a thread of libgomp waits for its team: half a millisecond or so, longer than what one thread does alone between
/// two pieces of work. In libgomp's own 300000 it keeps a core for ten, and where another program wants that core too, the thread that it waits for does
/// not get it. A step of the 3M took 0.62 s either way on two cores of a Xeon, and 2.2 in place of 4.4 s beside a compiler on both of them.
#[cfg(target_os = "linux")]
const SPINS: &str = "16000";

/// Begins this program anew with `GOMP_SPINCOUNT`, unless that or `OMP_WAIT_POLICY` is given: libgomp reads them when it is loaded, before
/// `main`. It stays the same process. Where it cannot be begun anew it goes on as it is: slower in company, and nothing else.
pub fn spin_briefly() {
    #[cfg(target_os = "linux")]
    {
        use std::env;
        use std::os::unix::process::CommandExt;
        if ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"].map(env::var_os) != [None, None] {
            return;
        }
        let (Ok(program), mut arguments) = (env::current_exe(), env::args_os()) else {
            return;
        };
        let name = arguments.next().unwrap_or_default();
        let mut anew = std::process::Command::new(program);
        let _why_not = anew.arg0(name).args(arguments).env("GOMP_SPINCOUNT", SPINS).exec();
    }
}

/// How many threads compute: as many as are asked for, else no more than this process may use. Of a container's limit (`cpu.max` of its
/// cgroup) OpenMP knows nothing: on a node of 64 cores it would make 64 threads that share the time of four, and wait for each other most of it.
pub fn set_count(asked: Option<u16>) {
    let may_use = std::thread::available_parallelism().ok();
    if let Some(count) = count(asked, may_use, tch::get_num_threads()) {
        tch::set_num_threads(count);
    }
}

/// None: libtorch's own count stays.
fn count(asked: Option<u16>, may_use: Option<NonZero<usize>>, of_libtorch: i32) -> Option<i32> {
    let limit = may_use.and_then(|cores| i32::try_from(cores.get()).ok());
    asked.map(i32::from).or(limit.filter(|limit| *limit < of_libtorch))
}

/// Ends the team of threads that the calling thread's parallel work made; the next such work makes a new one (50 us). A thread
/// that is about to wait calls it: while teams of several threads together have more threads than the machine has cores, GNU's
/// OpenMP puts every waiting thread of every team to sleep at once, and waking them took a tenth of a small model's PPO step.
pub fn release_team() {
    // SAFETY: it is outside of any parallel region.
    unsafe { ppo_release_team() };
}

/// Computes where blocking is allowed, and gives the team back that libtorch made there.
///
/// # Errors
/// When `work` panics.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    let work = move || {
        let made = work();
        release_team();
        made
    };
    tokio::task::spawn_blocking(work).await
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tch::{Device, Kind, Tensor};

    use super::*;

    /// Threads of this process that are called so: a team's have the name of the one that made it.
    fn threads_called(name: &str) -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|found| found.trim() == name).count()
    }

    #[test]
    fn no_more_threads_compute_than_a_limit_lets_run_unless_more_are_asked_for() {
        let cores = NonZero::new;
        assert_eq!(count(None, cores(4), 64), Some(4));
        // Cores with two threads each count once in libtorch.
        assert_eq!(count(None, cores(8), 4), None);
        assert_eq!(count(None, None, 4), None);
        assert_eq!(count(Some(16), cores(4), 64), Some(16));
    }

    #[test]
    fn a_team_is_there_after_parallel_work_and_gone_once_it_is_released() {
        const NAME: &str = "has-a-team";
        let work = || {
            let sum = || {
                Tensor::ones([1 << 22], (Kind::Float, Device::Cpu))
                    .exp()
                    .sum(Kind::Float)
            };
            for _ in 0..2 {
                drop(sum());
                assert_eq!(threads_called(NAME), tch::get_num_threads() as usize);
                release_team();
                let deadline = Instant::now() + Duration::from_secs(10);
                while threads_called(NAME) > 1 {
                    assert!(Instant::now() < deadline, "the team is still there");
                    std::thread::yield_now();
                }
            }
        };
        let thread = std::thread::Builder::new().name(NAME.into()).spawn(work).unwrap();
        thread.join().unwrap();
    }
}
