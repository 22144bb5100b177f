//! Which watches have listed: of what a watch has not shown before that, nobody knows whether it is there.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::world::Kind;

/// The first list of every watch, by its kind and its namespace (None: everywhere).
#[derive(Default)]
pub struct Listed(Mutex<HashMap<Watch, watch::Receiver<bool>>>);

/// Kind and namespace.
type Watch = (Kind, Option<String>);

impl Listed {
    /// Notes a watch that begins. `first_list` turns true at its first full list.
    pub fn begins(&self, kind: Kind, namespace: Option<String>, first_list: watch::Receiver<bool>) {
        self.0.lock().insert((kind, namespace), first_list);
    }

    /// Whether a watch of `namespace`, or of all, has shown every object of `kind` there.
    pub fn has(&self, kind: Kind, namespace: &str) -> bool {
        let watches = self.0.lock();
        let has_listed = |scope: Option<String>| {
            let first_list = watches.get(&(kind, scope));
            first_list.is_some_and(|first_list| *first_list.borrow())
        };
        has_listed(None) || has_listed(Some(namespace.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_known_where_its_watch_has_listed_and_not_as_soon_as_it_is_watched() {
        for (scope, elsewhere) in [(None, true), (Some("team-a".to_owned()), false)] {
            let listed = Listed::default();
            assert!(!listed.has(Kind::KueueWorkload, "team-a"), "nobody watches it");
            let (done, first_list) = watch::channel(false);
            listed.begins(Kind::KueueWorkload, scope, first_list);
            assert!(!listed.has(Kind::KueueWorkload, "team-a"), "its list has not come");
            done.send_replace(true);
            assert!(listed.has(Kind::KueueWorkload, "team-a"));
            assert_eq!(listed.has(Kind::KueueWorkload, "team-b"), elsewhere);
            assert!(!listed.has(Kind::VolcanoPodGroup, "team-a"));
        }
    }
}
