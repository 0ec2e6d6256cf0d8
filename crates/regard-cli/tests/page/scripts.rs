//! Texts in every script, and models that read in both directions.

use crate::chrome::Chrome;
use crate::first_look::words;
use crate::models::{SCRIPTS, both_ways, of_bytes};
use crate::served::Served;
use crate::views::{and_drawn, fragment, is_quiet};
use serde_json::json;

/// Right to left, wide characters, emoji and combining marks are shown as text by a model whose tokens are single bytes: in the tokens, the
/// lines, the map's text version, the lens and the lesson.
#[test]
fn every_script_is_shown_as_text() {
    let Some(chrome) = Chrome::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let model = of_bytes(folder.path());
    let served = Served::with(&["serve", "--no-open", "--json", model.to_str().expect("UTF-8")], |command| command);
    chrome.open(&format!("{}{}", served.address, fragment(&[("t", SCRIPTS)])));
    chrome.wait("document.getElementById('view').dataset.drawn");
    // Each character once, at its first byte; the bytes after it are dots.
    let shown = chrome.eval("Array.from(document.querySelectorAll('#tokens > span'), (span) => span.textContent)");
    let shown: Vec<&str> = shown.as_array().expect("tokens").iter().map(|token| token.as_str().expect("words")).collect();
    assert_eq!(shown.len(), SCRIPTS.len(), "a token for each byte");
    assert_eq!(shown.concat().replace('\u{b7}', ""), SCRIPTS);
    for view in ["head", "lens", "lesson"] {
        and_drawn(&chrome, |chrome| {
            chrome.eval(&format!("document.getElementById('tab-{view}').click()"));
        });
        if view == "lesson" {
            chrome.eval("document.querySelector('.question .plain').click()");
        }
        // The lesson has the first tokens, the lens the last ones.
        let first = match view {
            "lesson" => '\u{5dd}',
            "lens" => '\u{924}',
            _ => '\u{928}',
        };
        let written = words(&chrome, "#view");
        assert!(written.contains(first), "{view} does not show {first:?}: {written}");
        // Letters that a byte-level vocabulary writes for bytes.
        assert!(!written.contains(['\u{d7}', '\u{13d}', '\u{fffd}']), "{view} shows bytes as letters: {written}");
    }
    assert!(!words(&chrome, "#next").contains(['\u{d7}', '\u{fffd}']), "{}", words(&chrome, "#next"));
    // A word of several tokens is one row of the lines.
    chrome.eval("document.getElementById('tab-head').click()");
    chrome.wait("document.querySelector('#view svg.lines')");
    and_drawn(&chrome, |chrome| {
        chrome.eval(
            "[...document.querySelectorAll('#controls label')].find((label) => label.textContent.includes('words'))
                .querySelector('input').click()",
        );
    });
    let rows = chrome.eval("Array.from(document.querySelectorAll('#view text[data-token]'), (text) => text.textContent)");
    assert!(rows.as_array().expect("rows").contains(&json!("\u{5e9}\u{5dc}\u{5d5}\u{5dd}")), "{rows}");
    is_quiet(&served, &chrome);
}

/// What is said of a model that reads in both directions is true of it; and so is what is said when an edit takes the mask of another away.
#[test]
fn nothing_false_is_said_of_models_that_read_both_ways() {
    let Some(chrome) = Chrome::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let model = both_ways(folder.path());
    let served = Served::with(&["serve", "--no-open", "--json", model.to_str().expect("UTF-8")], |command| command);
    chrome.open(&format!("{}{}", served.address, fragment(&[("t", "the red apple the market"), ("v", "lesson"), ("n", "4")])));
    chrome.wait("document.getElementById('view').dataset.drawn");
    assert!(words(&chrome, "#intro").contains("both directions") && !words(&chrome, "#intro").contains("comes next"));
    assert_eq!(chrome.eval("document.getElementById('next').hidden"), json!(true));
    chrome.eval("document.querySelector('.question .plain').click()");
    let said = words(&chrome, "#view");
    assert!(said.contains("no token is hidden") && !said.contains("read ahead"), "{said}");
    assert!(words(&chrome, "#legend").contains("does not predict the next token"));
    assert_eq!(chrome.eval("document.getElementById('judge').disabled"), json!(true));
    // Its tokenizer leaves spaces out; words stay apart.
    let gap = chrome.eval(
        "document.getElementById('token-1').getBoundingClientRect().left
            - document.getElementById('token-0').getBoundingClientRect().right",
    );
    assert!(gap.as_f64().is_some_and(|gap| gap > 2.0), "{gap} pixels between two words");
    is_quiet(&served, &chrome);
    let own = Served::start(0);
    chrome.requests.borrow_mut().clear();
    chrome.open(&format!("{}{}", own.address, fragment(&[("v", "lesson"), ("n", "4"), ("e", "mask=full")])));
    chrome.wait("document.getElementById('view').dataset.drawn");
    chrome.eval("document.querySelector('.question .plain').click()");
    let said = words(&chrome, "#view");
    assert!(said.contains("An edit took the mask away") && !said.contains("This model reads in both directions"), "{said}");
    is_quiet(&own, &chrome);
}
