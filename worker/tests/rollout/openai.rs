//! The official Python client, as its users call it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process;
use crate::skip::skipped;
use crate::support::{LONG, NAME, Server, Wanted};

const VERSION: &str = "3.54.0";

/// For an environment, or what is downloaded into it.
const INSTALL: Duration = Duration::from_secs(300);

const SCRIPT: &str = r#"
import sys
from openai import AuthenticationError, BadRequestError, NotFoundError, OpenAI

client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="right", max_retries=0, timeout=60)
model = sys.argv[2]
assert [listed.id for listed in client.models.list()] == [model]

asked = dict(model=model, prompt="What is 12", max_tokens=30, n=2, seed=4, logprobs=2, extra_body={"ignore_eos": True})
whole = client.completions.create(**asked)
assert len(whole.choices) == 2 and whole.usage.completion_tokens == 60
assert len(whole.choices[0].logprobs.token_logprobs) == 30
texts = ["", ""]
for piece in client.completions.create(stream=True, stream_options={"include_usage": True}, **asked):
    for choice in piece.choices:
        texts[choice.index] += choice.text
assert texts == [choice.text for choice in whole.choices], texts
assert piece.usage == whole.usage

ids = client.completions.create(model=model, prompt=[[1, 2], [3]], max_tokens=4, extra_body={"return_token_ids": True})
assert len(ids.choices) == 2 and ids.choices[1].prompt_token_ids == [3]

messages = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
chat = dict(model=model, messages=messages, max_completion_tokens=20, seed=4, logprobs=True, top_logprobs=1)
whole = client.chat.completions.create(**chat)
assert whole.choices[0].message.role == "assistant"
assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
text = "".join(piece.choices[0].delta.content or "" for piece in client.chat.completions.create(stream=True, **chat))
assert text == whole.choices[0].message.content, text

# A second turn: what was said goes back as the client has it, with a null for every field that it has not.
said = whole.choices[0].message.model_dump()
assert said["tool_calls"] is None, said
plain = {"role": "assistant", "content": said["content"]}
def prompt_of(turn):
    asked = messages + [turn, {"role": "user", "content": "And now?"}]
    answer = client.chat.completions.create(model=model, messages=asked, max_tokens=1, extra_body={"return_token_ids": True})
    return answer.prompt_token_ids
assert prompt_of(said) == prompt_of(plain)

def refused(kind, call, word):
    try:
        call()
    except kind as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"no {kind}")

refused(BadRequestError, lambda: client.completions.create(model=model, prompt="a", temperature=-1), "temperature")
refused(NotFoundError, lambda: client.completions.create(model="other", prompt="a"), "other")
refused(AuthenticationError, lambda: client.with_options(api_key="wrong").models.list(), "Bearer")
print("well")
"#;

/// Python with the client, made once per machine; the reason where it cannot be had.
fn python() -> Result<PathBuf, String> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let folder = cache.or(home).ok_or("neither XDG_CACHE_HOME nor HOME is set")?;
    let folder = folder.join(format!("ppo/openai-{VERSION}"));
    let python = folder.join("bin/python");
    if folder.join("ready").exists() {
        return Ok(python);
    }
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let made = folder.to_string_lossy();
    done(Path::new("python3"), &["-m", "venv", &made])?;
    let package = format!("openai=={VERSION}");
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        &package,
    ];
    done(&python, &install)?;
    std::fs::write(folder.join("ready"), "").map_err(|error| error.to_string())?;
    Ok(python)
}

/// Runs a program to its end, which `timeout` sees to; its last words where it fails.
fn done(program: &Path, args: &[&str]) -> Result<(), String> {
    let mut command = Command::new("timeout");
    command.arg("--kill-after=10").arg(INSTALL.as_secs().to_string());
    let pipes = command
        .arg(program)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = process::finish_within(INSTALL + LONG, process::Running::start(pipes));
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!(
        "{}: {}",
        output.status,
        said.lines().last().unwrap_or("no reason")
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_completes_chats_and_streams() {
    let python = match tokio::task::spawn_blocking(python).await.unwrap() {
        Ok(python) => python,
        Err(reason) => {
            let why = format!("pip cannot install openai {VERSION}: {reason}");
            skipped("the test of the OpenAI client", &why);
            return;
        }
    };
    let server = Server::start_with(Wanted {
        token: Some("right"),
        ..Wanted::default()
    })
    .await;
    let url = server.url.clone();
    let run = move || process::output(Command::new(python).args(["-c", SCRIPT, &url, NAME]));
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "well");
}
