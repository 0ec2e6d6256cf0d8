//! Models of others: examples that find their head, a first text in the model's own language, encoder-decoders.

use crate::chrome::Chrome;
use crate::first_look::{number, words};
use crate::models::reads_and_writes;
use crate::served::{Served, regard, said};
use crate::views::{and_drawn, fragment, is_quiet, opened};
use serde_json::{Value, json};

const DRAWN: &str = "document.getElementById('view').dataset.drawn";

/// A small model that was trained on German.
fn german(folder: &std::path::Path) -> String {
    let (text, model) = (folder.join("text.txt"), folder.join("model"));
    let sentences = ["Der Hund sieht einen roten Ball im Garten. ", "Die Katze findet das Buch auf dem Markt. ", "Das Kind kauft Birnen. "];
    std::fs::write(&text, sentences.concat().repeat(60)).expect("it is written");
    let [text, model] = [&text, &model].map(|path| path.to_str().expect("UTF-8").to_owned());
    let size = ["--width", "32", "--layers", "2", "--heads", "2", "--context", "64", "--steps", "40", "--batch", "4"];
    let line = [&["train", "--text", &text, "--out", &model, "--quiet"][..], &size].concat();
    assert!(regard(&line).status().expect("it runs").success());
    model
}

#[test]
fn a_model_of_another_language_writes_its_first_text_and_examples_find_their_head() {
    let Some(chrome) = Chrome::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let model = german(folder.path());
    let served = Served::with(&["serve", "--no-open", "--json", &model, "built-in"], |command| command);
    chrome.open(&served.address);
    chrome.wait("document.getElementById('example-what').textContent.includes('wrote the text below itself')");
    chrome.wait(&format!("{DRAWN} && document.querySelectorAll('#tokens > span').length > 10"));
    let text = chrome.eval("document.getElementById('text').value");
    assert!(!text.as_str().expect("a text").contains("Once upon"), "{text}");
    assert!(words(&chrome, "#about-text").contains("loss"), "{}", words(&chrome, "#about-text"));
    chrome.shot("foreign");
    // The example of the previous token opens the head with the largest mean weight there, and says which.
    chrome.eval("{ const list = document.getElementById('example'); list.value = '0'; list.dispatchEvent(new Event('change')) }");
    chrome.wait("import('/state.js').then(({ state }) => state.view === 'head')");
    chrome.wait("document.querySelector('#view svg.lines')");
    let line = words(&chrome, "#same-command");
    let text = chrome.eval("document.getElementById('text').value");
    let out = folder.path().join("out");
    let look =
        said(&["look", &model, "--text", text.as_str().expect("a text"), "--json", "--quiet", "--out", out.to_str().expect("UTF-8")]);
    let rows = look[0]["rows"].as_array().expect("rows");
    let best = rows.iter().max_by(|a, b| number(&a["previous_token_mass"]).total_cmp(&number(&b["previous_token_mass"]))).expect("a head");
    let head = format!("{}.{}", best["layer"], best["head"]);
    assert!(line.ends_with(&format!("--head {head}")), "{line}: the best is {best}");
    assert!(words(&chrome, "#example-what").contains(&format!("head {head}")), "{}", words(&chrome, "#example-what"));
    // The built-in model beside it, by its name.
    and_drawn(&chrome, |chrome| {
        chrome.eval("{ const list = document.getElementById('model'); list.value = '1'; list.dispatchEvent(new Event('change')) }");
    });
    chrome.wait("document.getElementById('text').value.startsWith('Leo and Ben')");
    // The first run of a text whose letters it does not know.
    chrome.complaints.borrow_mut().retain(|complaint| !complaint.contains("422"));
    is_quiet(&served, &chrome);
}

#[test]
fn a_difference_that_is_nothing_is_said() {
    let Some((served, chrome)) = opened(&[("e", "L1.H2=zero"), ("s", "D"), ("l", "1"), ("h", "2")]) else { return };
    assert_eq!(
        chrome.eval("document.querySelectorAll('#view .heads button[data-unchanged]').length"),
        json!(8),
        "two layers of four heads"
    );
    for (view, words_in) in [("head", "#view"), ("map", "#map-words")] {
        and_drawn(&chrome, |chrome| {
            chrome.eval(&format!("document.getElementById('tab-{view}').click()"));
        });
        chrome.wait(&format!("document.querySelector({}).textContent.includes('change none of these weights')", json!(words_in)));
        assert_eq!(chrome.eval("document.querySelectorAll('#view .bar').length"), json!(0), "{view}: colours of nothing");
    }
    is_quiet(&served, &chrome);
}

#[test]
fn tokens_that_are_looked_at_are_listed_with_what_they_get() {
    let Some((served, chrome)) = opened(&[("v", "map"), ("l", "2"), ("h", "3")]) else { return };
    chrome.wait("document.querySelector('#columns li')");
    let shown =
        chrome.eval("Array.from(document.querySelectorAll('#columns li'), (one) => [Number(one.dataset.key), Number(one.dataset.value)])");
    let sums = chrome.eval(
        "Promise.all([import('/state.js'), import('/draw.js')]).then(async ([{ runs }, { rowsOfHead }]) => {
            const n = runs.B.tokens.length;
            const all = await rowsOfHead(2, 3, 0, n, n);
            return Array.from({ length: n }, (_, j) => Array.from({ length: n }, (_, i) => all[i * n + j]).reduce((a, b) => a + b, 0));
        })",
    );
    let shown = shown.as_array().expect("keys");
    assert_eq!(shown.len(), 12);
    for one in shown {
        let sum = number(&sums[number(&one[0]) as usize]);
        assert!((number(&one[1]) - sum).abs() < 1e-4 * (1.0 + sum), "{one}: the column adds up to {sum}");
    }
    assert!(shown.windows(2).all(|pair| number(&pair[0][1]) >= number(&pair[1][1])), "{shown:?}");
    is_quiet(&served, &chrome);
}

/// The weights of a head by the command.
fn by_command(model: &str, more: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("UTF-8");
    let tables = said(&[&["look", model, "--json", "--quiet", "--out", out], more].concat());
    let table = tables.as_array().expect("tables").iter().find(|table| table["name"] == "head_1_2").expect("a table").clone();
    table["rows"].as_array().expect("rows").clone()
}

#[test]
fn an_encoder_decoder_has_maps_of_encoder_decoder_and_cross_attention() {
    let Some(chrome) = Chrome::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let model = reads_and_writes(folder.path());
    let path = model.to_str().expect("UTF-8");
    let served = Served::with(&["serve", "--no-open", "--json", path], |command| command);
    let (source, text) = ("the dog went to the red market", "the apple went");
    let opening = [("src", source), ("t", text), ("v", "head"), ("l", "1"), ("h", "2")];
    for part in ["decoder", "encoder", "cross"] {
        chrome.open(&format!("{}{}", served.address, fragment(&[&opening[..], &[("p", part)]].concat())));
        chrome.wait(DRAWN);
        let shown = chrome.eval(
            "Promise.all([import('/state.js'), import('/draw.js')]).then(async ([{ runs }, { keysOf, rowsOfHead }]) => {
                const [n, m] = [runs.B.tokens.length, keysOf(runs.B).length];
                return [n, m, Array.from(await rowsOfHead(1, 2, 0, n, m))];
            })",
        );
        let (n, m) = (number(&shown[0]) as usize, number(&shown[1]) as usize);
        // The decoder begins with a token of its own, the encoder ends with one.
        let expected = match part {
            "decoder" => (4, 4),
            "encoder" => (8, 8),
            _ => (4, 8),
        };
        assert_eq!((n, m), expected, "{part}");
        let rows = by_command(path, &["--source", source, "--text", text, "--part", part, "--head", "1.2"]);
        assert!(!rows.is_empty());
        for row in &rows {
            let at = number(&row["query"]) as usize * m + number(&row["key"]) as usize;
            assert!((number(&shown[2][at]) - number(&row["weight"])).abs() < 1e-6, "{part}: {row} is not {}", shown[2][at]);
        }
        // Names on both sides are those of their own tokens.
        let names = |side: &str| {
            let list = chrome.eval(&format!("Array.from(document.querySelectorAll('#view text[{side}]'), (one) => one.textContent)"));
            list.as_array().expect("names").iter().map(|name| name.as_str().expect("words").to_owned()).collect::<Vec<_>>()
        };
        let (rows, keys) = (names("data-token"), names("data-key-name"));
        assert_eq!((rows.len(), keys.len()), (n, m), "{part}");
        assert_eq!(keys.contains(&"dog".to_owned()), part != "decoder", "{part}: {keys:?}");
        assert_eq!(rows.contains(&"apple".to_owned()), part != "encoder", "{part}: {rows:?}");
        let line = words(&chrome, "#same-command");
        assert!(line.contains("--source") && line.contains("--part") == (part != "decoder"), "{line}");
        for view in ["heads", "map"] {
            and_drawn(&chrome, |chrome| {
                chrome.eval(&format!("document.getElementById('tab-{view}').click()"));
            });
        }
        chrome.wait("document.querySelectorAll('#columns li').length > 0");
        chrome.shot(&format!("reads-{part}"));
    }
    // Cross-attention has no lesson and no positions to take away.
    chrome.eval("document.getElementById('tab-lesson').click()");
    chrome.wait("document.getElementById('empty')?.textContent.includes('cross-attention')");
    // Another source is read anew, and an empty one is refused in words.
    for (given, ends) in [("the red dog", true), ("", false)] {
        chrome.eval(&format!(
            "{{ const box = document.getElementById('source'); box.value = {}; box.dispatchEvent(new Event('input')) }}",
            json!(given)
        ));
        if ends {
            chrome.wait("import('/state.js').then(({ runs }) => runs.B.keys.length === 4)");
        } else {
            chrome.wait("document.getElementById('banner').textContent.includes('source text is empty')");
        }
    }
    chrome.complaints.borrow_mut().retain(|complaint| !complaint.contains("422"));
    is_quiet(&served, &chrome);
}
