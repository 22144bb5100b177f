use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::Path as UrlPath;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::stop::Interrupted;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const WEIGHTS: &[u8] = &[7; 5000];

/// A hub with one model on this machine. It asks for `token`, and breaks off the first `breaks` downloads of weights.
struct Server {
    url: String,
    requests: Arc<AtomicUsize>,
    ranges: Arc<Mutex<Vec<String>>>,
}

fn files(weights_sha256: &str) -> serde_json::Value {
    let small = |name: &str| json!({"rfilename": name, "size": 2, "blobId": format!("{:040x}", name.len())});
    let lfs = json!({"sha256": weights_sha256, "size": WEIGHTS.len()});
    json!({"sha": COMMIT, "siblings": [
        small("config.json"), small("tokenizer.json"), small("README.md"), small("onnx/model.json"), small(".x.json"),
        {"rfilename": "model.safetensors", "size": WEIGHTS.len(), "blobId": "f".repeat(40), "lfs": lfs},
        // The same weights as Mistral's own programs read them.
        small("consolidated.safetensors"),
    ]})
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn serve(token: &'static str, breaks: usize, info: serde_json::Value) -> Server {
    serve_busily(|_| false, token, breaks, info)
}

/// A request for whose number `busy` holds, from 0, is to be made again. Runs on a thread of its own: the code under test blocks.
fn serve_busily(busy: fn(usize) -> bool, token: &'static str, breaks: usize, info: serde_json::Value) -> Server {
    let requests = Arc::new(AtomicUsize::new(0));
    let ranges = Arc::new(Mutex::new(Vec::new()));
    let (counter, seen) = (requests.clone(), ranges.clone());
    let answer = move |UrlPath(path): UrlPath<String>, headers: HeaderMap| async move {
        if busy(counter.fetch_add(1, Ordering::SeqCst)) {
            return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "0")]).into_response();
        }
        let authorized = headers
            .get("authorization")
            .is_some_and(|value| value == &format!("Bearer {token}"));
        match path.as_str() {
            _ if !authorized && !token.is_empty() => StatusCode::UNAUTHORIZED.into_response(),
            path if is_revision(path) => axum::Json(info).into_response(),
            path if path.ends_with("/model.safetensors") => {
                let mut ranges = seen.lock();
                ranges.push(
                    headers
                        .get("range")
                        .map_or("", |value| value.to_str().unwrap())
                        .to_owned(),
                );
                let range = ranges
                    .last()
                    .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
                weights(range, ranges.len() <= breaks)
            }
            path if path.starts_with("owner/name/resolve/0123") => "{}".into_response(),
            _ => StatusCode::NOT_FOUND.into_response(),
        }
    };
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender
                .send(format!("http://{}", listener.local_addr().unwrap()))
                .unwrap();
            axum::serve(listener, Router::new().route("/{*path}", get(answer)))
                .await
                .unwrap();
        });
    });
    Server {
        url: receiver.recv().unwrap(),
        requests,
        ranges,
    }
}

fn is_revision(path: &str) -> bool {
    let revision = path.strip_prefix("api/models/owner/name/revision/");
    revision.is_some_and(|revision| ["main", COMMIT].contains(&revision))
}

/// The weights from `range` on; broken off in the middle when asked to.
fn weights(range: Option<usize>, breaks: bool) -> Response {
    let from = range.unwrap_or(0);
    let rest = WEIGHTS[from..].to_vec();
    let length = rest.len();
    let body = if breaks {
        let half = rest[..length / 2].to_vec();
        let broken = [Ok(half), Err(std::io::Error::other("broken"))];
        // A pause between the two, or the half that is written would be thrown away with the connection.
        let pauses = futures::stream::iter(broken);
        let slow = futures::StreamExt::then(pauses, |part| async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            part
        });
        Body::from_stream(slow)
    } else {
        Body::from(rest)
    };
    let total = WEIGHTS.len();
    let headers = [
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CONTENT_RANGE, format!("bytes {from}-{}/{total}", total - 1)),
    ];
    let status = if range.is_some() {
        StatusCode::PARTIAL_CONTENT
    } else {
        StatusCode::OK
    };
    (status, headers, body).into_response()
}

fn hub(cache: &Path, url: &str) -> Hub {
    Hub {
        cache: cache.to_owned(),
        endpoint: url.to_owned(),
        token: None,
        offline: false,
        first_pause: Duration::from_millis(1),
        stop: StopFlag::default(),
    }
}

#[test]
fn a_model_is_downloaded_once_into_the_layout_of_huggingface_hub() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve("", 0, files(&sha256(WEIGHTS)));
    let folder = hub(cache.path(), &server.url).model("owner/name", "main").unwrap();
    assert_eq!(folder, cache.path().join("models--owner--name/snapshots").join(COMMIT));
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
    let link = std::fs::read_link(folder.join("model.safetensors")).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(sha256(WEIGHTS)));
    assert_eq!(
        std::fs::read_to_string(cache.path().join("models--owner--name/refs/main")).unwrap(),
        COMMIT
    );

    let requests = server.requests.load(Ordering::SeqCst);
    let offline = Hub {
        offline: true,
        ..hub(cache.path(), &server.url)
    };
    assert_eq!(offline.model("owner/name", "main").unwrap(), folder);
    assert_eq!(
        offline.model("owner/name", COMMIT).unwrap(),
        folder,
        "a commit is found without refs"
    );
    assert_eq!(
        server.requests.load(Ordering::SeqCst),
        requests,
        "nothing is asked again"
    );
}

#[test]
fn the_files_that_a_model_is_read_from_are_wanted_and_those_that_are_saved_with_it() {
    let wanted = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "tokenizer.model",
        "vocab.json",
        "merges.txt",
    ];
    let others = [
        "README.md",
        "LICENSE.txt",
        "pytorch_model.bin",
        "original/params.json",
        "additional_chat_templates/notes.txt",
        "additional_chat_templates/old/tool_use.jinja",
        "additional_chat_templates/../x.jinja",
        "consolidated.safetensors",
    ];
    assert!(wanted.into_iter().all(is_wanted));
    assert!(!others.into_iter().any(is_wanted));
}

#[test]
fn a_file_in_a_folder_of_a_snapshot_leads_to_its_blob() {
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("blobs");
    std::fs::create_dir(&blobs).unwrap();
    let snapshot = cache.path().join("snapshots").join(COMMIT);
    let names = ["additional_chat_templates/tool_use.jinja", "chat_template.jinja"];
    for name in names {
        let blob = sha256(name.as_bytes());
        std::fs::write(blobs.join(&blob), name).unwrap();
        link(&snapshot, vec![(name, blob)]).unwrap();
    }
    let read = names.map(|name| std::fs::read_to_string(snapshot.join(name)).unwrap());
    assert_eq!(read, names);
}

#[test]
fn of_several_that_share_a_cache_one_downloads_and_the_others_wait() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve("", 0, files(&sha256(WEIGHTS)));
    let model = || hub(cache.path(), &server.url).model("owner/name", "main").unwrap();
    let folders: Vec<PathBuf> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(model)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(folders.iter().all(|folder| *folder == folders[0]));
    let requests = server.requests.load(Ordering::SeqCst);
    let alone = tempfile::tempdir().unwrap();
    hub(alone.path(), &server.url).model("owner/name", "main").unwrap();
    assert_eq!(server.requests.load(Ordering::SeqCst), 2 * requests);
}

#[test]
fn what_switches_offline_mode_on_is_what_huggingface_hub_takes_for_true() {
    assert!(["1", "on", "Yes", "TRUE"].iter().all(|value| is_on(value)));
    assert!(["0", "False", "off", "No", "n"].iter().all(|value| !is_on(value)));
}

#[test]
fn a_download_that_breaks_off_goes_on_where_it_stopped() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve("", 2, files(&sha256(WEIGHTS)));
    let folder = hub(cache.path(), &server.url).model("owner/name", "main").unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
    let ranges = server.ranges.lock();
    assert_eq!((ranges.len(), ranges[0].as_str()), (3, ""));
    let from = |number: usize| -> usize {
        let from = ranges[number]
            .strip_prefix("bytes=")
            .and_then(|range| range.strip_suffix('-'));
        from.unwrap().parse().unwrap()
    };
    assert!(0 < from(1) && from(1) < from(2), "{ranges:?}");
}

#[test]
fn a_download_that_ended_between_two_files_is_not_taken_for_whole_where_a_commit_is_asked_for() {
    let cache = tempfile::tempdir().unwrap();
    let mut info = files(&sha256(WEIGHTS));
    // As the hub has them, by name: behind all that a model cannot do without.
    let last = json!({"rfilename": "tokenizer_config.json", "size": 2, "blobId": "e".repeat(40)});
    info["siblings"].as_array_mut().unwrap().push(last);
    let model = |url: &str| hub(cache.path(), url).model("owner/name", COMMIT);
    let failing = serve_busily(|number| number > 3, "", 0, info.clone());
    let error = format!("{:#}", model(&failing.url).unwrap_err());
    assert!(
        error.contains("tokenizer_config.json") && error.contains("503"),
        "{error}"
    );
    let repaired = serve("", 0, info);
    let folder = model(&repaired.url).unwrap();
    assert!(folder.join("tokenizer_config.json").is_file());
    assert_eq!(
        repaired.requests.load(Ordering::SeqCst),
        2,
        "what had arrived is not asked for again"
    );
    assert_eq!(model("http://127.0.0.1:9").unwrap(), folder);
}

/// Asks to stop while `hub` brings a model.
fn ends_when_asked_to(hub: &Hub) {
    let began = Instant::now();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            hub.stop.request();
        });
        hub.model("owner/name", "main").unwrap_err()
    });
    assert!(error.is::<Interrupted>(), "{error:#}");
    // Of itself it would end after a minute at the earliest.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn a_download_from_a_hub_that_never_answers_ends_when_it_is_asked_to() {
    let cache = tempfile::tempdir().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    ends_when_asked_to(&hub(cache.path(), &url));
}

#[test]
fn one_that_waits_for_the_download_of_another_ends_when_it_is_asked_to() {
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("models--owner--name");
    let _other = alone(&folder, ANOTHERS_DOWNLOAD, &StopFlag::default()).unwrap();
    ends_when_asked_to(&hub(cache.path(), "http://127.0.0.1:9"));
}

#[test]
fn a_hub_that_is_busy_is_asked_again_for_the_model_and_for_each_file() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve_busily(|number| number.is_multiple_of(2), "", 0, files(&sha256(WEIGHTS)));
    let folder = hub(cache.path(), &server.url).model("owner/name", "main").unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
    assert_eq!(server.requests.load(Ordering::SeqCst), 2 * 4);
}

#[test]
fn a_hub_that_stays_busy_is_an_error_with_what_it_says() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve_busily(|_| true, "", 0, files(&sha256(WEIGHTS)));
    let error = hub(cache.path(), &server.url).model("owner/name", "main").unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("/api/models/owner/name/revision/main") && error.contains("503"),
        "{error}"
    );
    assert!(server.requests.load(Ordering::SeqCst) > 1);
}

#[test]
fn what_does_not_match_its_hash_is_not_kept() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve("", 0, files(&sha256(b"other")));
    let error = format!(
        "{:#}",
        hub(cache.path(), &server.url).model("owner/name", "main").unwrap_err()
    );
    assert!(error.contains("model.safetensors: what arrived has SHA-256"), "{error}");
    let blobs = std::fs::read_dir(cache.path().join("models--owner--name/blobs")).unwrap();
    assert_eq!(
        blobs
            .filter(|blob| blob.as_ref().unwrap().metadata().unwrap().len() > 100)
            .count(),
        0
    );
    assert!(!cache.path().join("models--owner--name/refs").exists());
}

#[test]
fn a_file_that_python_downloads_at_the_same_time_is_left_to_it() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve("", 0, files(&sha256(WEIGHTS)));
    let blobs = cache.path().join("models--owner--name/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let of_python = blobs.join(format!("{}.incomplete", sha256(WEIGHTS)));
    std::fs::write(&of_python, "half of it").unwrap();
    let folder = hub(cache.path(), &server.url).model("owner/name", "main").unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
    assert_eq!(std::fs::read_to_string(of_python).unwrap(), "half of it");
}

#[test]
fn no_more_is_taken_of_a_hub_than_it_says_that_there_is() {
    let error = |info: serde_json::Value| {
        let cache = tempfile::tempdir().unwrap();
        let server = serve("", 0, info);
        let model = hub(cache.path(), &server.url).model("owner/name", "main");
        format!("{:#}", model.unwrap_err())
    };
    let mut short = files(&sha256(WEIGHTS));
    short["siblings"][5]["size"] = json!(100);
    let words = error(short);
    assert!(words.contains("model.safetensors: more than the 100 bytes"), "{words}");
    let mut long = files(&sha256(WEIGHTS));
    long["padding"] = json!("x".repeat(17 << 20));
    let words = error(long);
    assert!(
        words.contains("revision/main?blobs=true: more than the 16777216 bytes"),
        "{words}"
    );
}

#[test]
fn a_private_model_needs_the_token() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve("secret", 0, files(&sha256(WEIGHTS)));
    let open = hub(cache.path(), &server.url);
    let error = format!("{:#}", open.model("owner/name", "main").unwrap_err());
    assert!(error.contains("401") && error.contains("; set HF_TOKEN"), "{error}");
    let other = Hub {
        token: Some("other".into()),
        ..hub(cache.path(), &server.url)
    };
    let error = format!("{:#}", other.model("owner/name", "main").unwrap_err());
    assert!(
        error.contains("may not read it") && error.contains("accept the model's terms"),
        "{error}"
    );
    Hub {
        token: Some("secret".into()),
        ..open
    }
    .model("owner/name", "main")
    .unwrap();
}

#[tokio::test]
async fn errors_say_what_would_help_even_inside_a_runtime() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve("", 0, files(&sha256(WEIGHTS)));
    let error = |hub: Hub, id: &str, revision: &str| format!("{:#}", hub.model(id, revision).unwrap_err());
    let online = || hub(cache.path(), &server.url);
    let offline = Hub {
        offline: true,
        ..online()
    };
    assert!(error(offline, "owner/name", "main").contains("HF_HUB_OFFLINE is set"));
    assert!(error(online(), "owner/name", "v2").contains("no such model or revision; check hub.id and hub.revision"));
    assert!(error(online(), "../name", "main").contains("want owner/name"));
    assert!(error(online(), "a/b/c", "main").contains("want owner/name"));
    assert!(error(online(), "owner/name", "../../x").contains("want a branch"));
    let bare = error(hub(cache.path(), "hf-mirror.com"), "owner/name", "main");
    assert!(
        bare.contains("HF_ENDPOINT is \"hf-mirror.com\"; want an address with https://"),
        "{bare}"
    );
    let dead = error(hub(cache.path(), "http://127.0.0.1:9"), "owner/name", "main");
    assert!(
        dead.contains("downloading owner/name@main from http://127.0.0.1:9") && dead.contains("HF_ENDPOINT"),
        "{dead}"
    );
}

#[test]
fn a_snapshot_without_all_its_shards_is_not_taken_for_whole() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    let write = |name: &str, text: &str| std::fs::write(snapshot.join(name), text).unwrap();
    write("config.json", "{}");
    write("tokenizer.json", "{}");
    write(
        "model.safetensors.index.json",
        r#"{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#,
    );
    write("a.safetensors", "");
    assert_eq!(cached(folder.path(), COMMIT), None);
    write("b.safetensors", "");
    assert_eq!(cached(folder.path(), COMMIT), Some(snapshot));
}

#[test]
fn a_path_is_itself_or_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = Location::Path(folder.path().to_owned());
    assert_eq!(resolve_location(&path).unwrap(), folder.path());
    let error = resolve_location(&Location::Path("/nowhere/model".into())).unwrap_err();
    assert!(error.is::<Invalid>(), "another try would not find it either");
    let error = error.to_string();
    assert!(
        error.starts_with("/nowhere/model does not exist: give a folder"),
        "{error}"
    );
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = resolve_location(&Location::Path(file.join("model"))).unwrap_err();
    assert!(error.is::<Invalid>(), "{error:#}");
    let error = resolve_location(&Location::Path(file)).unwrap_err();
    assert!(error.is::<Invalid>(), "{error:#}");
    assert!(error.to_string().contains("is a file: give the folder"), "{error}");
}

#[test]
fn a_path_that_cannot_be_looked_at_may_be_there_at_another_try() {
    let folder = tempfile::tempdir().unwrap();
    // A link to itself, at which a look fails whoever looks.
    let path = folder.path().join("model");
    std::os::unix::fs::symlink(&path, &path).unwrap();
    let error = resolve_location(&Location::Path(path.clone())).unwrap_err();
    assert!(!error.is::<Invalid>(), "{error:#}");
    let words = format!("cannot tell whether {} exists: its volume", path.display());
    assert!(error.to_string().starts_with(&words), "{error:#}");
}

#[test]
fn cache_and_offline_are_those_of_huggingface_hub() {
    let of = |given: &[(&str, &str)]| {
        let value = |name: &str| {
            given
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        Hub::of(value).unwrap()
    };
    assert_eq!(of(&[("HF_HOME", "~/x"), ("HOME", "/h")]).cache, Path::new("/h/x/hub"));
    assert_eq!(
        of(&[("HUGGINGFACE_HUB_CACHE", "/c"), ("HOME", "/h")]).cache,
        Path::new("/c")
    );
    assert_eq!(of(&[("HOME", "/h")]).cache, Path::new("/h/.cache/huggingface/hub"));
    assert!(of(&[("TRANSFORMERS_OFFLINE", "1"), ("HOME", "/h")]).offline);
    let online = [("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1"), ("HOME", "/h")];
    assert!(!of(&online).offline);
}

#[test]
fn a_download_may_break_off_more_often_than_a_request_is_tried_while_each_time_more_arrives() {
    let cache = tempfile::tempdir().unwrap();
    let server = serve("", 8, files(&sha256(WEIGHTS)));
    let folder = hub(cache.path(), &server.url).model("owner/name", "main").unwrap();
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
    assert_eq!(server.ranges.lock().len(), 9);
}
