//! axe-core in every view and theme, where `REGARD_AXE` names its file (`cargo xtask test` gets it from npm).

use crate::views::{and_drawn, is_quiet, opened};
use serde_json::json;

#[test]
fn axe_finds_nothing_in_any_view_and_theme() {
    let Some(path) = std::env::var_os("REGARD_AXE") else {
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
    assert!(found.is_empty(), "{}", found.join("\n"));
    is_quiet(&served, &chrome);
}

fn violations(chrome: &crate::chrome::Chrome, what: &str) -> Vec<String> {
    let list = chrome.eval("axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160) + ' ' + node.failureSummary.slice(0, 200)).join(' | ')}`))");
    assert_ne!(list, json!(null), "axe did not run");
    list.as_array().expect("a list").iter().map(|one| format!("{what}: {one}")).collect()
}
