//! axe-core in every view and theme, where `REGARD_AXE` names its file (`cargo xtask test` gets it from npm).

use crate::views::{and_drawn, is_quiet, opened};
use serde_json::json;

#[test]
fn axe_finds_nothing_in_any_view_and_theme() {
    let Some(path) = std::env::var_os("REGARD_AXE") else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no axe-core: with CI=true accessibility is always tested");
        eprintln!("SKIPPED: REGARD_AXE names no axe.min.js");
        return;
    };
    let axe = std::fs::read_to_string(path).expect("axe-core");
    let Some((served, chrome)) = opened(&[("e", "L1.H2=zero")]) else { return };
    chrome.wait("document.querySelector('.heads .label')");
    chrome.eval(&format!("{axe}; 0"));
    let mut found = Vec::new();
    for (i, view) in ["head", "map", "neuron", "lens", "lesson", "heads"].into_iter().enumerate() {
        let key = (i + 1) % 6 + 1;
        chrome.eval("document.activeElement.blur()");
        and_drawn(&chrome, |chrome| chrome.key(&key.to_string()));
        for dark in [false, true] {
            chrome.size(1280, 900, dark);
            if view == "lesson" {
                for step in 0..9 {
                    chrome.eval(&format!("document.querySelectorAll('.dots button')[{step}].click()"));
                    chrome.wait(&format!("document.querySelector('.lesson')?.dataset.step === '{step}'"));
                    chrome.eval("document.querySelector('.question .plain')?.click()");
                    found.extend(violations(&chrome, &format!("lesson {step} {dark}")));
                }
            }
            found.extend(violations(&chrome, &format!("{view} {dark}")));
        }
    }
    // Beside the views: two texts compared, an empty text, and what opens above the page.
    for (what, open, close) in [
        ("two texts", "import('/state.js').then(({ go }) => go({ other: 'Leo and Ben went to the library.' }))", "1"),
        ("an empty text", "import('/state.js').then(({ go }) => go({ other: '', text: '', edits: '' }))", "1"),
        ("tour", "document.getElementById('start-tour').click()", "document.getElementById('tour').close()"),
        ("glossary", "document.getElementById('glossary').click()", "document.getElementById('keys').close()"),
        ("keys", "document.getElementById('help').click()", "document.getElementById('keys').close()"),
    ] {
        let before = chrome.eval("document.getElementById('view').dataset.drawn");
        chrome.eval(open);
        if close == "1" {
            chrome.wait(&format!("document.getElementById('view').dataset.drawn !== {before}"));
        }
        for dark in [false, true] {
            chrome.size(1280, 900, dark);
            found.extend(violations(&chrome, &format!("{what} {dark}")));
        }
        chrome.eval(close);
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    is_quiet(&served, &chrome);
}

fn violations(chrome: &crate::chrome::Chrome, what: &str) -> Vec<String> {
    let list = chrome.eval(
        "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations.map((one) => \
        `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160) + ' ' + node.failureSummary.slice(0, 200)).join(' | \
        ')}`))",
    );
    assert_ne!(list, json!(null), "axe did not run");
    list.as_array().expect("a list").iter().map(|one| format!("{what}: {one}")).collect()
}
