//! Links and names of files lead somewhere.

use crate::page::{Page, repository};

/// The anchor that a heading gets on the pages of a forge.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn links(page: &Page) -> Vec<(usize, String)> {
    let link = |(number, line): (usize, &str)| {
        let parts: Vec<_> = line
            .split("](")
            .skip(1)
            .map(|rest| (number, rest.split(')').next().unwrap().to_owned()))
            .collect();
        parts
    };
    page.prose().flat_map(link).collect()
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let mut pages = Page::all();
    for name in [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "charts/ppo-operator/README.md",
    ] {
        pages.push(Page::read(name));
    }
    let mut seen = 0;
    for page in &pages {
        let folder = repository().join(&page.name).parent().unwrap().to_owned();
        for (number, link) in links(page).into_iter().filter(|(_, link)| !link.contains("://")) {
            seen += 1;
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() {
                repository().join(&page.name)
            } else {
                folder.join(file)
            };
            assert!(target.exists(), "{}:{number}: {link} leads nowhere", page.name);
            if !heading.is_empty() {
                let text = std::fs::read_to_string(&target).unwrap();
                let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
                let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#').trim()));
                assert!(
                    anchors.any(|known| known == heading),
                    "{}:{number}: {link} names no heading",
                    page.name
                );
            }
        }
    }
    assert!(seen > 40, "only {seen} links were found");
}

#[test]
fn every_page_of_docs_is_named_in_the_readme() {
    let readme = Page::read("README.md").text;
    for page in Page::all() {
        assert!(readme.contains(&page.name), "README.md does not lead to {}", page.name);
    }
}

#[test]
fn every_file_that_is_named_exists() {
    let folders = [
        "configs/",
        "charts/",
        "crds/",
        "worker/",
        "operator/",
        "tests/",
        "docs/",
    ];
    let mut seen = 0;
    for page in Page::all() {
        let fenced = ["", "yaml", "console"]
            .map(|language| page.blocks(language))
            .into_iter()
            .flatten();
        for code in fenced.chain(page.spans()) {
            let words = code.text.split(|c: char| c.is_whitespace() || "`'\"(),".contains(c));
            for word in words.filter(|word| folders.iter().any(|folder| word.starts_with(folder))) {
                seen += 1;
                let file = word.trim_end_matches(['.', ':']);
                // `configs/*.json` stands for files, and so does a folder.
                let fixed = file.split('*').next().unwrap();
                assert!(
                    repository().join(fixed).exists(),
                    "{}: {word} does not exist",
                    code.place
                );
            }
        }
    }
    assert!(seen > 15, "only {seen} names of files were found");
}
