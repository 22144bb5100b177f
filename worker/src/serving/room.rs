//! The memory of bodies that are being read. It is taken as bytes arrive, so that what a client announces and does not send holds up nobody,
//! and short bodies have some of their own, so that no long one does.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::limits::Limits;

/// Bytes of a short body, and of the beginning of a long one.
pub const SHORT: usize = 64 << 10;

/// What all bodies share.
#[derive(Debug)]
pub struct Rooms {
    /// KiB of short bodies, and of the beginnings of long ones: enough for one on each connection.
    short: Arc<Semaphore>,
    /// KiB of long bodies.
    long: Arc<Semaphore>,
    /// One long body is read to its end though others have all of `long`: else each might wait for the rest of its own until all are too late.
    last: Arc<Semaphore>,
}

impl Rooms {
    /// Rooms within `limits`.
    pub fn new(limits: &Limits) -> Self {
        let semaphore = |kibibytes: usize| Arc::new(Semaphore::new(kibibytes.clamp(1, Semaphore::MAX_PERMITS)));
        Self {
            short: semaphore(limits.connections.saturating_mul(SHORT >> 10)),
            long: semaphore(limits.all_body_bytes >> 10),
            last: semaphore(1),
        }
    }

    /// Room for a short body, or for the beginning of one that is longer or does not say how long it is.
    ///
    /// # Errors
    /// None in a server that runs: rooms are never closed.
    pub async fn enter(&self, announced: Option<usize>) -> Result<Room, AcquireError> {
        let bytes = announced.unwrap_or(SHORT).min(SHORT);
        Ok(Room {
            short: Some(self.short.clone().acquire_many_owned(kibibytes(bytes)).await?),
            long: None,
            last: None,
        })
    }
}

/// The memory that one body counts for, until it is dropped.
#[derive(Debug, Default)]
pub struct Room {
    short: Option<OwnedSemaphorePermit>,
    long: Option<OwnedSemaphorePermit>,
    last: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Waits until it has room for so many bytes.
    ///
    /// # Errors
    /// As [`Rooms::enter`].
    pub async fn grow(&mut self, rooms: &Rooms, bytes: usize) -> Result<(), AcquireError> {
        let held = self.long.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = kibibytes(bytes).saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
        if bytes <= SHORT || self.last.is_some() || missing == 0 {
            return Ok(());
        }
        tokio::select! {
            biased;
            more = rooms.long.clone().acquire_many_owned(missing) => match &mut self.long {
                Some(long) => long.merge(more?),
                long => *long = Some(more?),
            },
            last = rooms.last.clone().acquire_owned() => self.last = Some(last?),
        }
        self.short = None;
        Ok(())
    }
}

fn kibibytes(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10).max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Rooms for `long` KiB of long bodies.
    fn rooms(long: usize) -> Rooms {
        Rooms::new(&Limits {
            all_body_bytes: long << 10,
            ..Limits::default()
        })
    }

    fn entered(rooms: &Rooms, announced: Option<usize>) -> Room {
        rooms.enter(announced).now_or_never().unwrap().unwrap()
    }

    fn grown(rooms: &Rooms, room: &mut Room, kibibytes: usize) -> bool {
        room.grow(rooms, kibibytes << 10).now_or_never().is_some()
    }

    #[test]
    fn a_body_takes_the_room_of_long_ones_as_it_becomes_longer_and_gives_all_back() {
        let rooms = rooms(256);
        let before = rooms.short.available_permits();
        let mut room = entered(&rooms, None);
        assert!(grown(&rooms, &mut room, 64));
        assert_eq!(
            (rooms.short.available_permits(), rooms.long.available_permits()),
            (before - 64, 256)
        );
        assert!(grown(&rooms, &mut room, 65) && grown(&rooms, &mut room, 200));
        assert_eq!(
            (rooms.short.available_permits(), rooms.long.available_permits()),
            (before, 56)
        );
        drop(room);
        assert_eq!(rooms.long.available_permits(), 256);
    }

    #[test]
    fn what_is_announced_and_not_sent_takes_no_room_of_long_bodies() {
        let rooms = rooms(256);
        let _idle: Vec<Room> = (0..1000).map(|_| entered(&rooms, Some(16 << 20))).collect();
        assert_eq!(rooms.long.available_permits(), 256);
        let mut room = entered(&rooms, Some(100));
        assert!(grown(&rooms, &mut room, 1), "a short one");
    }

    #[test]
    fn of_long_bodies_that_have_all_the_room_together_one_is_read_to_its_end() {
        let rooms = rooms(256);
        let mut bodies: Vec<Room> = (0..2).map(|_| entered(&rooms, None)).collect();
        assert!(bodies.iter_mut().all(|body| grown(&rooms, body, 128)));
        assert!(grown(&rooms, &mut bodies[0], 1000), "it is the last one");
        assert!(!grown(&rooms, &mut bodies[1], 1000));
        drop(bodies.remove(0));
        assert!(grown(&rooms, &mut bodies[0], 256));
    }
}
