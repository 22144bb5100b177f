//! Bodies of requests: read within limits of size, time and memory, then parsed.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use axum::http::{HeaderMap, StatusCode};
use futures::StreamExt;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::ApiError;
use super::limits::Limits;
use super::room::{Room, Rooms, SHORT};
use crate::native::threads::blocking;

/// Bounds of bodies, and the memory that all of them share.
pub struct Bodies {
    limits: Limits,
    rooms: Rooms,
}

impl Bodies {
    /// Bodies within `limits`.
    pub fn new(limits: Limits) -> Self {
        let rooms = Rooms::new(&limits);
        Self { limits, rooms }
    }
}

/// Reads the request's body and parses it as JSON. An empty body is an empty object.
///
/// # Errors
/// 400 with the place that is wrong, 408 when it comes too slowly, 413 when it is too long, 415 when it is no JSON, 503 when too many others are
/// being read.
pub async fn json<T>(bodies: &Bodies, request: Request) -> Result<T, ApiError>
where
    T: DeserializeOwned + Send + 'static,
{
    held(bodies, request).await.map(|(parsed, _room)| parsed)
}

/// As [`json`], with the memory that the body counts for: to be kept while its texts are.
///
/// # Errors
/// As [`json`].
pub async fn held<T>(bodies: &Bodies, request: Request) -> Result<(T, Room), ApiError>
where
    T: DeserializeOwned + Send + 'static,
{
    check_kind(request.headers())?;
    let (bytes, room) = read(bodies, request).await?;
    if bytes.len() <= SHORT {
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        return Ok((parse(text)?, room));
    }
    // Aside: it takes long enough to hold up other requests. It goes on when the client has gone, and has its room with it.
    let parsing = move || Ok((parse(&bytes)?, room));
    blocking(parsing).await.map_err(ApiError::internal)?
}

/// The bytes of the body, which take their room as they arrive.
async fn read(bodies: &Bodies, request: Request) -> Result<(Vec<u8>, Room), ApiError> {
    let Bodies { limits, rooms } = bodies;
    let announced = content_length(request.headers());
    if announced.is_some_and(|length| length > limits.body_bytes) {
        return Err(too_long(limits));
    }
    let full = || ApiError::unavailable("too many long requests are being read: try again");
    let late = || {
        let seconds = limits.body_timeout.as_secs_f64();
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {seconds} s"),
        )
    };
    // The client is not to blame for the time that its body waits for others.
    let (mut for_room, mut for_bytes) = (Patience(limits.body_timeout), Patience(limits.body_timeout));
    let entered = for_room.wait(rooms.enter(announced)).await.ok_or_else(full)?;
    let mut room = entered.map_err(ApiError::internal)?;
    let mut bytes = Vec::new();
    let mut pieces = request.into_body().into_data_stream();
    while let Some(piece) = for_bytes.wait(pieces.next()).await.ok_or_else(late)? {
        let piece = piece.map_err(|error| ApiError::bad(format!("the body broke off: {error}")))?;
        let length = bytes.len() + piece.len();
        if length > limits.body_bytes {
            return Err(too_long(limits));
        }
        let grown = for_room.wait(room.grow(rooms, length)).await.ok_or_else(full)?;
        grown.map_err(ApiError::internal)?;
        bytes.extend_from_slice(&piece);
    }
    Ok((bytes, room))
}

/// What is left of the time that several waits may take together.
struct Patience(Duration);

impl Patience {
    /// None: it is over.
    async fn wait<T>(&mut self, awaited: impl Future<Output = T>) -> Option<T> {
        let began = Instant::now();
        let came = tokio::time::timeout(self.0, awaited).await;
        self.0 = self.0.saturating_sub(began.elapsed());
        came.ok()
    }
}

/// A body that has to be an object. A struct of serde's is read from a list as well, its fields in their order.
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, words: &mut fmt::Formatter) -> fmt::Result {
                words.write_str("an object with the request's fields")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }

        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

/// Parses a body as JSON.
///
/// # Errors
/// 400 with the path of the field that is wrong, or with the place where it is no JSON.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
    // Only what does not fit is read again with its path, which costs something for every number of a list.
    serde_json::from_slice(text).map_err(|error| {
        let fault = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_slice(text)).err();
        let field = fault.as_ref().and_then(|fault| fault.path().iter().next());
        match (field.map(ToString::to_string), &fault) {
            (Some(field), Some(fault)) if error.is_data() => {
                misfit(fault.path().to_string(), &field, &fault.inner().to_string())
            }
            _ => ApiError::bad(format!("the body is not what is wanted here: {error}")),
        }
    })
}

/// Names that serde has for what fits, and what they mean.
const KINDS: [(&str, &str); 6] = [
    ("expected usize", "expected a whole number, at least 0"),
    ("expected u64", "expected a whole number, at least 0"),
    ("expected u32", "expected a whole number, at least 0"),
    ("expected i64", "expected a whole number"),
    ("expected f32", "expected a number"),
    ("expected f64", "expected a number"),
];

/// The error for what stands at `path`, inside `field`. Words that begin with the field's name say the place themselves.
fn misfit(path: String, field: &str, words: &str) -> ApiError {
    let words = KINDS
        .iter()
        .fold(words.to_owned(), |words, (name, said)| words.replace(name, said));
    let goes_on = |next: char| next.is_alphanumeric() || next == '_';
    match words.strip_prefix(field) {
        Some(rest) if !rest.starts_with(goes_on) => ApiError {
            param: Some(path.into()),
            ..ApiError::bad(words)
        },
        _ => ApiError::field(path, words),
    }
}

/// A body must say that it is JSON. A page in somebody's browser cannot say so to a server that it does not belong to
/// without asking first, so it cannot change the weights of one on that person's machine.
fn check_kind(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_empty = content_length(headers).unwrap_or(0) == 0 && !headers.contains_key(TRANSFER_ENCODING);
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_json = kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("application/json"));
    // Unpacked, a body could be a thousand times as long as it was allowed to be; as it is it would be said to be no JSON.
    let is_plain = headers
        .get(CONTENT_ENCODING)
        .is_none_or(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    if !is_plain {
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body is compressed (header content-encoding): send it as it is",
        ));
    }
    if is_empty || is_json {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "send the header content-type: application/json",
    ))
}

/// What the client says its body is long.
pub fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_long(limits: &Limits) -> ApiError {
    let (most, shorter) = (limits.body_bytes, limits.shorter_body);
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("the body is longer than {most} bytes: {shorter}"),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::thread::ThreadId;

    use axum::body::{Body, Bytes};
    use futures::stream;
    use serde::Deserialize;
    use serde_json::Value;

    use super::*;

    type Lists = BTreeMap<String, Vec<u32>>;

    #[test]
    fn a_field_that_does_not_fit_is_named_by_its_path_with_what_was_given_and_what_fits() {
        let error = parse::<Lists>(br#"{"a": [], "b": [1, "x"]}"#).unwrap_err();
        assert_eq!(
            (error.status, error.param.as_deref()),
            (StatusCode::BAD_REQUEST, Some("b[1]"))
        );
        let words = r#"b[1]: invalid type: string "x", expected a whole number, at least 0"#;
        assert!(error.message.starts_with(words), "{error}");
    }

    #[test]
    fn a_body_that_is_no_json_or_something_else_as_a_whole_is_no_fields_fault() {
        for (text, words) in [("[]", "invalid type"), (r#"{"a": [1,"#, "EOF"), ("{} 1", "trailing")] {
            let error = parse::<Lists>(text.as_bytes()).unwrap_err();
            assert_eq!(error.param, None, "{error}");
            assert!(error.message.contains(words), "{error}");
        }
    }

    #[test]
    fn a_list_is_no_object_though_serde_reads_fields_from_one() {
        #[derive(Debug, Default, Deserialize)]
        #[serde(default)]
        struct Asked {
            names: Option<Vec<String>>,
        }
        for text in ["[]", r#"[["a"]]"#, "null", "1"] {
            let error = parse::<Object<Asked>>(text.as_bytes()).err().unwrap();
            let words = "an object with the request's fields";
            assert!(error.message.contains(words), "{text}: {error}");
        }
        let asked = parse::<Object<Asked>>(br#"{"names": ["a"]}"#).unwrap().0;
        assert_eq!(asked.names.unwrap(), ["a"]);
        let error = parse::<Object<Asked>>(br#"{"names": [1]}"#).err().unwrap();
        assert_eq!(error.param.as_deref(), Some("names[0]"));
    }

    #[test]
    fn words_that_name_their_field_are_not_named_again() {
        let said = |field: &str| misfit(field.to_owned(), field, "labels[1] is none").message;
        assert_eq!(said("labels"), "labels[1] is none");
        assert_eq!(said("label"), "label: labels[1] is none");
    }

    /// A request whose body arrives in `pieces`, the last of which may never come.
    fn request(announced: Option<usize>, pieces: &[&[u8]], ends: bool) -> Request {
        let pieces: Vec<Result<Bytes, axum::Error>> = pieces.iter().map(|piece| Ok(piece.to_vec().into())).collect();
        let pieces = stream::iter(pieces);
        let body = match ends {
            true => Body::from_stream(pieces),
            false => Body::from_stream(pieces.chain(stream::pending())),
        };
        let request = Request::post("/").header(CONTENT_TYPE, "application/json");
        let request = match announced {
            Some(length) => request.header(CONTENT_LENGTH, length),
            None => request.header(TRANSFER_ENCODING, "chunked"),
        };
        request.body(body).unwrap()
    }

    /// A JSON text of so many bytes.
    fn text(bytes: usize) -> Vec<u8> {
        format!("\"{}\"", "a".repeat(bytes - 2)).into_bytes()
    }

    #[tokio::test]
    async fn uploads_that_announce_much_and_send_nothing_hold_up_no_other_body() {
        let bodies = Bodies::new(Limits::default());
        let most = Limits::default().body_bytes;
        let idle: Vec<_> = (0..40)
            .map(|_| Box::pin(json::<Value>(&bodies, request(Some(most), &[b"{"], false))))
            .collect();
        let mut idle = futures::future::join_all(idle);
        for length in [10, 1 << 20] {
            let text = text(length);
            for announced in [Some(length), None] {
                let asked = json::<Value>(&bodies, request(announced, &[&text], true));
                tokio::select! {
                    read = asked => assert_eq!(read.unwrap().as_str().unwrap().len(), length - 2),
                    _ = &mut idle => panic!("they are idle"),
                }
            }
        }
    }

    #[tokio::test]
    async fn bodies_that_are_more_than_the_memory_together_are_all_read() {
        let limits = Limits {
            all_body_bytes: 1 << 20,
            ..Limits::default()
        };
        let bodies = Bodies::new(limits);
        let whole = text(400 << 10);
        let pieces: Vec<&[u8]> = whole.chunks(10_000).collect();
        let asked = (0..8).map(|_| json::<Value>(&bodies, request(None, &pieces, true)));
        let read = tokio::time::timeout(Duration::from_secs(20), futures::future::join_all(asked)).await;
        assert!(read.unwrap().iter().all(Result::is_ok));
    }

    #[tokio::test]
    async fn a_long_body_that_finds_no_room_in_time_is_told_so_and_one_that_comes_too_slowly_too() {
        let limits = Limits {
            all_body_bytes: 128 << 10,
            body_timeout: Duration::from_millis(50),
            ..Limits::default()
        };
        let bodies = Bodies::new(limits);
        let long = text(120 << 10);
        let read = async || held::<Value>(&bodies, request(None, &[&long], true)).await;
        let _kept = [read().await.unwrap(), read().await.unwrap()];
        let error = read().await.unwrap_err();
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE, "{error}");
        let slow = json::<Value>(&bodies, request(Some(100), &[b"{"], false)).await;
        assert_eq!(slow.unwrap_err().status, StatusCode::REQUEST_TIMEOUT);
    }

    /// On which thread it was parsed.
    struct Parsed(ThreadId);

    impl<'de> Deserialize<'de> for Parsed {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            String::deserialize(deserializer)?;
            Ok(Self(std::thread::current().id()))
        }
    }

    #[tokio::test]
    async fn a_compressed_body_is_told_so_and_one_that_says_it_is_not_is_read() {
        let bodies = Bodies::new(Limits::default());
        let mut read = Vec::new();
        for encoding in ["gzip", "identity"] {
            let mut request = request(None, &[b"{}"], true);
            let value = encoding.parse().unwrap();
            request.headers_mut().insert(CONTENT_ENCODING, value);
            read.push(json::<Value>(&bodies, request).await);
        }
        let error = read[0].clone().unwrap_err();
        assert_eq!(error.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert!(error.message.contains("compressed"), "{error}");
        assert!(read[1].is_ok());
    }

    #[tokio::test]
    async fn a_long_body_is_parsed_aside_and_a_short_one_at_once() {
        let bodies = Bodies::new(Limits::default());
        for (length, aside) in [(SHORT, false), (SHORT + 1, true)] {
            let text = text(length);
            let parsed: Parsed = json(&bodies, request(Some(length), &[&text], true)).await.unwrap();
            assert_eq!(parsed.0 != std::thread::current().id(), aside, "{length} bytes");
        }
    }
}
