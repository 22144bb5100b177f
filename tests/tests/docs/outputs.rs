//! What the pages show a command to print is what it prints. `...` stands for lines that are left out.

use std::process::Command;

use crate::page::{Page, repository};
use crate::worker;

#[test]
fn every_shown_output_is_the_real_one() {
    let mut seen = 0;
    for page in Page::all() {
        for code in page.blocks("console") {
            let (command, shown) = code.text.split_once('\n').unwrap();
            let words: Vec<&str> = command.strip_prefix("$ ").unwrap().split_whitespace().collect();
            assert_eq!(words[0], "ppo-worker", "{}", code.place);
            // These look and change nothing.
            assert!(["plan", "convert"].contains(&words[1]), "{}: {command}", code.place);
            let mut command = Command::new(worker::binary());
            let output = worker::output(command.args(&words[1..]).current_dir(repository()));
            let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            let mut lines = printed.lines();
            let mut left_out = false;
            for wanted in shown.lines() {
                if wanted == "..." {
                    left_out = true;
                    continue;
                }
                let found = match left_out {
                    true => lines.any(|line| line == wanted),
                    false => lines.next() == Some(wanted),
                };
                assert!(found, "{}: {wanted:?} is not what comes next in\n{printed}", code.place);
                left_out = false;
                seen += 1;
            }
        }
    }
    assert!(seen > 20);
}
