//! Container images of the binaries that were built here, without a container engine (`tests/cluster/image`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::machine::find;
use crate::run;

/// User and group of our images, as the Dockerfiles have it.
const UNPRIVILEGED: &str = "65532:65532";

/// Where the certificates of authorities lie, here and in our images.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A container image to be made of files of this machine.
#[derive(Clone, Debug)]
pub struct Image {
    /// Name and tag.
    pub name: String,
    words: Vec<String>,
}

impl Image {
    /// Programs of [`busybox`](Self::busybox).
    pub const APPLETS: [&str; 7] = ["sh", "sleep", "cat", "tar", "sha256sum", "ls", "rm"];

    /// An image that holds `file` at `place`.
    pub fn of(name: &str, file: &Path, place: &str) -> Self {
        Self {
            name: name.into(),
            words: vec![format!("{}={place}", file.display())],
        }
    }

    /// What `operator/Dockerfile` makes, of the binary in `folder`.
    pub fn operator(folder: &Path) -> Self {
        let image = Self::of(
            &format!("docker.io/library/ppo-operator:{}", env!("CARGO_PKG_VERSION")),
            &folder.join("ppo-operator"),
            "/ppo-operator",
        );
        image
            .with_certificates()
            .with(&["--user", UNPRIVILEGED, "--entrypoint", "/ppo-operator", "--cmd", "run"])
    }

    /// What `worker/Dockerfile` makes, of the binary in `folder` and the libtorch it was linked with.
    pub fn worker(folder: &Path) -> Self {
        let image = Self::of(
            &format!("docker.io/library/ppo-worker:{}", env!("CARGO_PKG_VERSION")),
            &folder.join("ppo-worker"),
            "/usr/local/bin/ppo-worker",
        );
        image
            .with_certificates()
            .with(&["--user", UNPRIVILEGED, "--entrypoint", "/usr/local/bin/ppo-worker"])
    }

    /// A shell and the usual small programs, for pods that copy and look at files.
    pub fn busybox() -> Self {
        let name = "docker.io/library/busybox:latest";
        // Where there is none, what writes the image names the usual place as missing.
        let program = find("busybox").unwrap_or_else(|| "/bin/busybox".into());
        let mut image = Self::of(name, &program, "/bin/busybox");
        for applet in Self::APPLETS {
            image.words.push(format!("{}=/bin/{applet}", program.display()));
        }
        image.with(&["--cmd", "sh"])
    }

    /// More words of `tests/cluster/image`.
    pub fn with(mut self, words: &[&str]) -> Self {
        self.words.splice(0..0, words.iter().map(|&word| word.to_owned()));
        self
    }

    fn with_certificates(mut self) -> Self {
        self.words.push(format!("{CERTIFICATES}={CERTIFICATES}"));
        self
    }

    /// Writes the archive into `folder`; its path.
    ///
    /// # Errors
    /// When a file is missing or the folder cannot be written.
    pub async fn write(&self, folder: &Path) -> Result<PathBuf> {
        let out = folder.join(format!("{}.tar", self.name.replace(['/', ':'], "-")));
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/image");
        let target = out.display().to_string();
        let words = self.words.iter().map(String::as_str);
        let args: Vec<&str> = [target.as_str(), self.name.as_str()].into_iter().chain(words).collect();
        run(&script, &args, &BTreeMap::new()).await?.success()?;
        Ok(out)
    }
}
