//! Mends a document that cannot be read, so that the rules see the rest of it: what was misspelt gets the name that was most likely meant, what
//! is of another type is left out, and what must be there has a stand-in. Of what was mended no rule is told.

mod place;

use serde_yaml::Value;

use self::place::Place;
use super::misfit::Misfit;
use super::{at, misfits, read};
use crate::PpoJob;
use crate::field::{self, Step};
use crate::validate::{is_within, problems_apart_from};

/// Each round mends what the one before could not see: what is wrong in a block under a misspelt name, say.
const ROUNDS: usize = 16;

/// A document on its way to one that can be read.
pub(super) struct Mended {
    document: Value,
    job: Option<PpoJob>,
    told: Vec<Misfit>,
    /// Fields that say nothing now.
    unread: Vec<String>,
    renamed: Vec<Renamed>,
}

/// A field that was read under another name than the one it is written with.
struct Renamed {
    path: Vec<Step>,
    written: Step,
}

impl Mended {
    /// Mends a document in which `found` cannot be read.
    pub fn of(document: Value, found: Vec<Misfit>) -> Self {
        let mut mended = Self {
            document,
            job: None,
            told: Vec::new(),
            unread: Vec::new(),
            renamed: Vec::new(),
        };
        mended.mend(found);
        for _ in 0..ROUNDS {
            let found = misfits(&mended.document);
            if !found.is_empty() {
                mended.mend(found);
                continue;
            }
            match read(&mended.document) {
                Ok(job) => {
                    mended.job = Some(job);
                    break;
                }
                Err(misfit) => mended.mend(vec![misfit]),
            }
        }
        mended
    }

    /// Everything that cannot be read, then the rules that are broken besides.
    pub fn wrong(&self) -> Vec<Misfit> {
        let broken = self.job.iter().flat_map(|job| problems_apart_from(&self.unread, job));
        let broken = broken.map(|problem| Misfit::new(field::steps(&problem.field), problem.in_words()));
        self.told.iter().cloned().chain(broken).collect()
    }

    /// A path as the text has it.
    pub fn as_written(&self, path: &[Step]) -> Vec<Step> {
        let mut written = path.to_vec();
        for renamed in self.renamed.iter().filter(|renamed| path.starts_with(&renamed.path)) {
            if let Some(step) = renamed.path.len().checked_sub(1).and_then(|last| written.get_mut(last)) {
                *step = renamed.written.clone();
            }
        }
        written
    }

    fn mend(&mut self, found: Vec<Misfit>) {
        let before = self.renamed.len();
        // Names first: what is missing may be there under another.
        let renamed: Vec<bool> = found.iter().map(|misfit| self.rename(misfit).is_some()).collect();
        for (misfit, renamed) in found.into_iter().zip(renamed) {
            let guess = self.renamed.iter().position(|renamed| renamed.path == misfit.path);
            if guess.is_some_and(|guess| guess >= before) {
                continue;
            }
            // Of a guess that cannot be read, either, the name was told.
            let is_told = guess.is_some() || self.follows(&misfit);
            if !renamed {
                self.leave_out(&misfit);
            }
            if !is_told {
                self.told.push(misfit);
            }
        }
    }

    /// Whether it may only come of what says nothing now.
    fn follows(&self, misfit: &Misfit) -> bool {
        let path = field::path(&misfit.path);
        let is_around = |unread: &str| unread.rsplit_once('.').is_some_and(|(block, _)| block == path);
        self.unread
            .iter()
            .any(|unread| is_within(&path, unread) || is_around(unread))
    }

    /// Gives a field the name beside it that was most likely meant, where there is none of that name yet.
    fn rename(&mut self, misfit: &Misfit) -> Option<()> {
        let [meant] = misfit.meant.as_deref()? else { return None };
        let path = field::steps(meant);
        let ((Step::Field(name), block), (written, beside)) = (path.split_last()?, misfit.path.split_last()?) else {
            return None;
        };
        let Step::Field(old) = written else { return None };
        if block != beside || at(&self.document, &path).is_some() {
            return None;
        }
        let fields = at_mut(&mut self.document, block)?.as_mapping_mut()?;
        let value = fields.remove(old.as_str())?;
        fields.insert(name.as_str().into(), value);
        self.renamed.push(Renamed {
            written: written.clone(),
            path,
        });
        Some(())
    }

    fn leave_out(&mut self, misfit: &Misfit) {
        let mut path = misfit.path.clone();
        let place = Place::of(&path);
        if let (Place::Open, Some(Step::Item(_))) = (&place, path.last()) {
            // Without it the items after it would be others: they go, too.
            let list = path.iter().position(|step| matches!(step, Step::Item(_)));
            path.truncate(list.unwrap_or_default());
        }
        match &misfit.meant {
            // A field that there is not says nothing about others, but where it stands for one.
            Some(meant) => {
                let absent = meant
                    .iter()
                    .filter(|meant| at(&self.document, &field::steps(meant)).is_none());
                self.unread.extend(absent.cloned());
            }
            None => self.unread.push(field::path(&path)),
        }
        let Some((last, block)) = path.split_last() else { return };
        match (at_mut(&mut self.document, block), last, place) {
            (Some(Value::Mapping(fields)), Step::Field(name), Place::Needed(least)) => {
                fields.insert(name.as_str().into(), least);
            }
            (Some(Value::Mapping(fields)), Step::Field(name), _) => {
                fields.remove(name.as_str());
            }
            (Some(Value::Sequence(items)), Step::Item(index), Place::Needed(least)) => {
                if let Some(item) = items.get_mut(*index) {
                    *item = least;
                }
            }
            _ => {}
        }
    }
}

fn at_mut<'a>(block: &'a mut Value, path: &[Step]) -> Option<&'a mut Value> {
    path.iter().try_fold(block, |value, step| match step {
        Step::Field(name) => value.get_mut(name),
        Step::Item(index) => value.get_mut(*index),
    })
}
