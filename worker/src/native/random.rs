//! libtorch's random stream, which is one for all threads of a process.

use parking_lot::Mutex;

static STREAM: Mutex<()> = Mutex::new(());

/// What `draw` makes of the stream that begins at `seed`. Threads that draw through here take turns: the same seed gives the same
/// numbers, whatever others do.
pub fn seeded<T>(seed: u64, draw: impl FnOnce() -> T) -> T {
    let _turn = STREAM.lock();
    tch::manual_seed(seed as i64);
    draw()
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    #[test]
    fn threads_that_draw_at_once_get_what_their_seed_gives() {
        let draw = |seed| {
            let drawn = seeded(seed, || Tensor::randn([1000], (Kind::Float, Device::Cpu)));
            Vec::<f32>::try_from(&drawn).unwrap()
        };
        let alone = [draw(1), draw(2)];
        std::thread::scope(|scope| {
            for turn in 0..4 {
                let alone = &alone;
                scope.spawn(move || {
                    let which = turn % 2;
                    assert!((0..50).all(|_| draw(1 + which as u64) == alone[which]));
                });
            }
        });
    }
}
