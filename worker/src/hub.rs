//! Models from the Hugging Face hub: the cache that Python's `huggingface_hub` keeps, and a download into that same layout.

pub mod foreign;
mod lock;
mod request;
pub mod templates;
mod token;

use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use ppo_crds::run_config::Location;
use reqwest::header::CONTENT_RANGE;
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use self::lock::{ANOTHERS_DOWNLOAD, alone};
use self::templates::MORE_TEMPLATES;
use self::token::known_token;
use crate::manifest::Invalid;
use crate::pace;
use crate::stop::StopFlag;

/// Ends the name of what is not whole. Not Python's `incomplete`: to its file of that name another process may write at this moment.
const UNFINISHED: &str = "ppo-incomplete";
/// Bytes of what the hub says of a model, at the most.
const LONGEST_INFO: u64 = 16 << 20;
/// Bytes of a file of which the hub does not say how long it is, at the most.
const LONGEST_UNTOLD: u64 = 1 << 30;
/// Bytes that arrive in a second at the least: below that a download is given up, beside its first ten minutes.
const LEAST_RATE: u64 = 100_000;

/// The folder of a model, on this machine's disk. A model on the hub is looked up in the cache and downloaded
/// when it is not there. Blocks; may be called with or without a runtime around it. For a process that a signal ends whatever it
/// does; one with a [`StopFlag`] wants [`resolve_unless_stopped`].
///
/// # Errors
/// [`Invalid`] for a path that does not exist; one that cannot be looked at; a model that is neither in the cache nor can be
/// downloaded, with what would help.
pub fn resolve_location(location: &Location) -> Result<PathBuf> {
    resolve_unless_stopped(location, &StopFlag::default())
}

/// As [`resolve_location`], and a download ends when somebody asks to stop: the next one goes on where it was.
///
/// # Errors
/// Those of [`resolve_location`]; [`Interrupted`](crate::stop::Interrupted).
pub fn resolve_unless_stopped(location: &Location, stop: &StopFlag) -> Result<PathBuf> {
    check_path(location)?;
    match location {
        Location::Path(path) => Ok(path.clone()),
        Location::Hub { id, revision } => {
            let hub = Hub {
                stop: stop.clone(),
                ..Hub::from_env()?
            };
            hub.model(id, revision)
        }
    }
}

/// The folder of a model that is on this machine's disk already; nothing is fetched.
pub fn found_here(location: &Location) -> Option<PathBuf> {
    match location {
        Location::Path(path) => path.join("config.json").exists().then(|| path.clone()),
        Location::Hub { id, revision } => cached(&Hub::from_env().ok()?.folder(id, revision).ok()?, revision),
    }
}

/// What is wrong with a file that is no file of a model, where a clone without Git LFS has left a pointer in its place.
pub fn only_a_pointer(bytes: &[u8]) -> Option<&'static str> {
    let is_pointer = bytes.starts_with(b"version https://git-lfs.github.com/spec/");
    is_pointer.then_some("a pointer of Git LFS, not the file itself: `git lfs pull` in its folder brings it")
}

/// Whether there is a folder at a path; a model of the hub is not looked for.
///
/// # Errors
/// [`Invalid`] where there is nothing, or a file; where that cannot be told, an error that another try may not meet.
pub fn check_path(location: &Location) -> Result<()> {
    let Location::Path(path) = location else {
        return Ok(());
    };
    let is_there = match path.try_exists() {
        // What it should be in is a file.
        Err(error) if error.kind() == ErrorKind::NotADirectory => false,
        looked => looked.with_context(|| {
            format!(
                "cannot tell whether {} exists: its volume has to be mounted, and this process allowed to read it",
                path.display()
            )
        })?,
    };
    if path.is_file() {
        let words = format!(
            "{} is a file: give the folder of the model, with config.json, safetensors and tokenizer.json in it",
            path.display()
        );
        return Err(Invalid::new(words).into());
    }
    if is_there {
        return Ok(());
    }
    let words = format!(
        "{} does not exist: give a folder in Hugging Face layout, or a model of the hub as owner/name (in a manifest as hub.id){}",
        path.display(),
        of_the_hub(path)
    );
    Err(Invalid::new(words).into())
}

/// Words for a path that is not there and ends as a model of the hub is called, below a folder that is there.
pub fn of_the_hub(path: &Path) -> String {
    let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned()).filter(|name| is_plain(name));
    let owner = path.parent().filter(|owner| !owner.exists());
    let above = owner.and_then(Path::parent);
    // Of a path without a folder above it that is the working folder; of what is missing below the root no hub's model was meant.
    let is_below =
        above.is_some_and(|above| above.as_os_str().is_empty() || (above.is_dir() && above.parent().is_some()));
    match (owner.and_then(name), name(path)) {
        (Some(owner), Some(name)) if is_below => {
            format!(
                "; where {owner}/{name} of the hub is meant, write `hub: {{id: {owner}/{name}}}` in place of `path`"
            )
        }
        _ => String::new(),
    }
}

/// Where models come from and where they are kept.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Folder of `models--<owner>--<name>` folders.
    pub cache: PathBuf,
    /// Base URL.
    pub endpoint: String,
    /// For private and gated models.
    pub token: Option<String>,
    /// Use the cache alone.
    pub offline: bool,
    /// The pause after a first try that may be repeated lies between 0 and this; it doubles with every further one.
    pub first_pause: Duration,
    /// Ends a download, and the wait for that of another process.
    pub stop: StopFlag,
}

/// Answer of `/api/models/<id>/revision/<revision>?blobs=true`.
#[derive(Deserialize)]
struct Info {
    sha: String,
    siblings: Vec<RemoteFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RemoteFile {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
}

impl Hub {
    /// As Python's `huggingface_hub` (`constants.py`): `HF_HUB_CACHE` or `HUGGINGFACE_HUB_CACHE`, else `HF_HOME`/hub, else
    /// `XDG_CACHE_HOME`/huggingface/hub, else `~/.cache/huggingface/hub`; `HF_ENDPOINT`, `HF_TOKEN` or what `hf auth login` has left,
    /// `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`.
    ///
    /// # Errors
    /// When no variable says where the cache is.
    pub fn from_env() -> Result<Self> {
        Self::of(|name| std::env::var(name).ok())
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        // A pod's environment knows no shell.
        let folder = |name: &str| {
            let given = PathBuf::from(variable(name)?);
            let below_home = given.strip_prefix("~").ok().zip(variable("HOME"));
            Some(below_home.map_or(given.clone(), |(rest, home)| Path::new(&home).join(rest)))
        };
        let below = |name: &str, tail: &str| folder(name).map(|folder| folder.join(tail));
        let home = folder("HF_HOME")
            .or_else(|| below("XDG_CACHE_HOME", "huggingface"))
            .or_else(|| below("HOME", ".cache/huggingface"));
        let cache = folder("HF_HUB_CACHE")
            .or_else(|| folder("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(home.as_ref()?.join("hub")))
            .context("no folder for downloaded models: set HF_HOME")?;
        let offline = variable("HF_HUB_OFFLINE").or_else(|| variable("TRANSFORMERS_OFFLINE"));
        Ok(Self {
            cache,
            endpoint: variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned()),
            token: known_token(variable, home),
            offline: offline.is_some_and(|value| is_on(&value)),
            first_pause: Duration::from_secs(1),
            stop: StopFlag::default(),
        })
    }

    /// Folder of a model's files.
    ///
    /// # Errors
    /// An id or revision that is not one, or a model that is not here and cannot be had; [`Interrupted`](crate::stop::Interrupted).
    pub fn model(&self, id: &str, revision: &str) -> Result<PathBuf> {
        let folder = self.folder(id, revision)?;
        if let Some(snapshot) = cached(&folder, revision) {
            return Ok(snapshot);
        }
        if self.offline {
            bail!(
                "{id}@{revision} is not in {} and HF_HUB_OFFLINE is set: download it there first, or give the model as a path",
                self.cache.display()
            );
        }
        let _alone = alone(&folder, ANOTHERS_DOWNLOAD, &self.stop)?;
        // Another process may have been waited for that brought it.
        if let Some(snapshot) = cached(&folder, revision) {
            return Ok(snapshot);
        }
        // A thread with a runtime of its own: the caller may or may not be inside one.
        std::thread::scope(|scope| {
            let download = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let done = runtime.block_on(self.stop.unless_requested(self.download(&folder, id, revision)));
                // One that is dropped waits for a look-up of the hub's address, which nothing can break off.
                runtime.shutdown_background();
                done
            });
            download.join().map_err(|_| anyhow!("the download thread panicked"))?
        })
        .with_context(|| format!("downloading {id}@{revision} from {}", self.endpoint))
    }

    /// Where the cache has a model, whatever of it is there.
    fn folder(&self, id: &str, revision: &str) -> Result<PathBuf> {
        let plain = |text: &str| text.split('/').all(is_plain);
        if !plain(id) || id.split('/').count() > 2 {
            bail!("hub model id {id:?}: want owner/name");
        }
        if !plain(revision) {
            bail!("hub revision {revision:?}: want a branch, a tag or a commit");
        }
        Ok(self.cache.join(format!("models--{}", id.replace('/', "--"))))
    }

    async fn download(&self, folder: &Path, id: &str, revision: &str) -> Result<PathBuf> {
        let client = crate::http_client::builder()
            .connect_timeout(Duration::from_secs(10))
            .read_timeout(Duration::from_secs(60))
            .build()?;
        let endpoint = self.endpoint.trim_end_matches('/');
        if !["http://", "https://"]
            .iter()
            .any(|scheme| endpoint.starts_with(scheme))
        {
            bail!(
                "HF_ENDPOINT is {:?}; want an address with https:// or http://",
                self.endpoint
            );
        }
        let url = format!(
            "{endpoint}/api/models/{id}/revision/{}?blobs=true",
            revision.replace('/', "%2F")
        );
        let asked = async || -> Result<Vec<u8>> {
            let response = self.get(&client, &url, 0).await?;
            let mut answer = Vec::new();
            arrive(response, 0, LONGEST_INFO, |chunk| {
                answer.extend_from_slice(chunk);
                Ok(())
            })
            .await?;
            Ok(answer)
        };
        let answer = self.insist(&url, || 0, asked).await?;
        let info: Info = serde_json::from_slice(&answer).with_context(|| format!("answer of {url}"))?;
        if info.sha.is_empty() || !info.sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            bail!("{url}: {:?} is no commit", info.sha);
        }
        let wanted: Vec<_> = info.siblings.iter().filter(|file| is_wanted(&file.rfilename)).collect();
        if !wanted.iter().any(|file| file.rfilename.ends_with(".safetensors")) {
            bail!(
                "the model has no .safetensors file in its top folder, beside consolidated ones, which are not read; convert it first"
            );
        }
        let blobs = folder.join("blobs");
        std::fs::create_dir_all(&blobs).with_context(|| format!("cannot create {}", blobs.display()))?;
        let mut arrived = Vec::new();
        for file in wanted {
            let url = format!("{endpoint}/{id}/resolve/{}/{}", info.sha, file.rfilename);
            let name = blob_name(file).with_context(|| format!("{}: no blob id", file.rfilename))?;
            let blob = blobs.join(&name);
            if !blob.exists() {
                self.fetch(&client, &url, &blob, file).await?;
            }
            arrived.push((file.rfilename.as_str(), name));
        }
        let snapshot = folder.join("snapshots").join(&info.sha);
        link(&snapshot, arrived)?;
        // Last: a branch that points at a commit promises that its files are there.
        let reference = folder.join("refs").join(revision);
        write_whole(&reference, info.sha.as_bytes())?;
        Ok(snapshot)
    }

    /// One file into `blob`: beside it until it is whole and checked.
    async fn fetch(&self, client: &Client, url: &str, blob: &Path, file: &RemoteFile) -> Result<()> {
        let part = blob.with_extension(UNFINISHED);
        let arrived = || std::fs::metadata(&part).map_or(0, |metadata| metadata.len());
        let rest = async || self.fetch_rest(client, url, &part, file.size).await;
        self.insist(url, arrived, rest).await?;
        check(&part, file)
            .await
            .inspect_err(|_| drop(std::fs::remove_file(&part)))
            .with_context(|| url.to_owned())?;
        std::fs::rename(&part, blob).with_context(|| format!("cannot create {}", blob.display()))
    }

    async fn fetch_rest(&self, client: &Client, url: &str, part: &Path, size: Option<u64>) -> Result<()> {
        let have = std::fs::metadata(part).map_or(0, |metadata| metadata.len());
        if size.is_some_and(|size| have == size) {
            return Ok(());
        }
        let have = if size.is_some_and(|size| have > size) { 0 } else { have };
        let response = self.get(client, url, have).await?;
        let begins_there = || {
            let range = response
                .headers()
                .get(CONTENT_RANGE)?
                .to_str()
                .ok()?
                .strip_prefix("bytes ")?;
            range.split('-').next()?.parse().ok()
        };
        // A server may ignore the range and send everything again.
        let go_on = response.status() == StatusCode::PARTIAL_CONTENT && begins_there() == Some(have);
        let mut options = std::fs::OpenOptions::new();
        options.create(true).write(true).append(go_on).truncate(!go_on);
        let place = || format!("cannot write {}", part.display());
        let mut out = options.open(part).with_context(place)?;
        let have = if go_on { have } else { 0 };
        let write = |chunk: &[u8]| out.write_all(chunk).with_context(place);
        arrive(response, have, size.unwrap_or(LONGEST_UNTOLD), write).await?;
        out.sync_all().with_context(place)
    }
}

/// Hands on what arrives behind `have` bytes, of `most` in all.
///
/// # Errors
/// When it breaks off, when more comes, and when it comes too slowly.
async fn arrive(
    mut response: Response,
    mut have: u64,
    most: u64,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let limit = pace::lengthened(pace::LEAST, most.saturating_sub(have), LEAST_RATE);
    let arriving = async {
        while let Some(chunk) = response.chunk().await? {
            have += chunk.len() as u64;
            if have > most {
                bail!("more than the {most} bytes that it may have");
            }
            take(&chunk)?;
        }
        Ok(())
    };
    tokio::time::timeout(limit, arriving).await.unwrap_or_else(|_| {
        bail!(
            "not all arrived within {} s; start it again, which goes on from there, or give a mirror that is nearer by HF_ENDPOINT",
            limit.as_secs()
        )
    })
}

/// Whether a part of an id or of a revision may be one.
fn is_plain(part: &str) -> bool {
    let known = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
}

/// What `huggingface_hub` takes for true (`is_true` in its `constants.py`).
fn is_on(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.to_ascii_uppercase().as_str())
}

/// The snapshot of a revision (a commit, or a name in `refs/`) if all that a model needs is in it.
fn cached(folder: &Path, revision: &str) -> Option<PathBuf> {
    let snapshots = folder.join("snapshots");
    let commit = std::fs::read_to_string(folder.join("refs").join(revision));
    let snapshot = snapshots.join(commit.as_deref().map_or(revision, str::trim));
    let has = |name: &str| snapshot.join(name).is_file();
    let index = std::fs::read(snapshot.join("model.safetensors.index.json"));
    let weights = match index
        .ok()
        .filter(|_| !has("model.safetensors"))
        .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
    {
        Some(index) => index["weight_map"]
            .as_object()?
            .values()
            .all(|shard| shard.as_str().is_some_and(has)),
        None => has("model.safetensors"),
    };
    (weights && has("config.json") && has("tokenizer.json")).then_some(snapshot)
}

/// Makes a snapshot of files and the names of their blobs, all of which are there. `config.json` is the last one: without it a snapshot is
/// [not taken](cached), so one that has it has the others, too. A revision that is a commit is found without a reference that would
/// promise it.
fn link(snapshot: &Path, mut files: Vec<(&str, String)>) -> Result<()> {
    std::fs::create_dir_all(snapshot).with_context(|| format!("cannot create {}", snapshot.display()))?;
    files.sort_by_key(|(name, _)| *name == "config.json");
    for (name, blob) in files {
        let link = snapshot.join(name);
        if !link.exists() {
            let _ = std::fs::remove_file(&link);
            let place = link.parent().unwrap_or(snapshot);
            std::fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
            // From a folder inside it is one further up.
            let up = "../".repeat(2 + name.matches('/').count());
            std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(blob), &link)
                .with_context(|| format!("cannot create {}", link.display()))?;
        }
    }
    Ok(())
}

/// Configuration, tokenizer and safetensors in the top folder, and the folder of further chat templates; nothing of other frameworks, and no weights twice: Mistral's own programs
/// read `consolidated*.safetensors`, beside which a model has the same ones as everybody names them.
fn is_wanted(name: &str) -> bool {
    let ending = [".json", ".jinja", ".safetensors", ".model"]
        .iter()
        .any(|ending| name.ends_with(ending));
    // What belongs to vocab.json.
    let is_merges = name == "merges.txt";
    let plain = |name: &str| !name.contains('/') && !name.starts_with('.');
    let named = name
        .strip_prefix(MORE_TEMPLATES)
        .and_then(|rest| rest.strip_prefix('/'));
    let is_template = named.is_some_and(|file| plain(file) && file.ends_with(".jinja"));
    is_template || (ending || is_merges) && plain(name) && !name.starts_with("consolidated")
}

/// The name that `huggingface_hub` gives a blob: the hash that is also its ETag.
fn blob_name(file: &RemoteFile) -> Option<String> {
    let name = file.lfs.as_ref().map(|lfs| &lfs.sha256).or(file.blob_id.as_ref())?;
    (name.len() >= 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| name.clone())
}

/// Whether all of a file arrived, and as it is. A large one takes long to hash, so others have their turn meanwhile: to be asked to stop.
async fn check(part: &Path, file: &RemoteFile) -> Result<()> {
    let mut content = std::fs::File::open(part).with_context(|| format!("cannot read {}", part.display()))?;
    let size = content.metadata()?.len();
    if let Some(wanted) = file.size.filter(|wanted| *wanted != size) {
        bail!("{size} bytes arrived, want {wanted}");
    }
    if let Some(lfs) = &file.lfs {
        let mut hash = Sha256::new();
        let mut block = vec![0; 1 << 20];
        loop {
            let count = content.read(&mut block)?;
            if count == 0 {
                break;
            }
            hash.update(&block[..count]);
            tokio::task::yield_now().await;
        }
        let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if found != lfs.sha256 {
            bail!("what arrived has SHA-256 {found}, want {}; try again", lfs.sha256);
        }
    }
    Ok(())
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let place = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(place)?;
    }
    let aside = path.with_extension(UNFINISHED);
    std::fs::write(&aside, bytes).with_context(place)?;
    std::fs::rename(&aside, path).with_context(place)
}

#[cfg(test)]
mod tests;
