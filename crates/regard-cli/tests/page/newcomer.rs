//! A new user's walk: the first screen, suggestions, the tour, signs of work, and what each view offers.

use crate::chrome::Chrome;
use crate::first_look::{LOSS_A, LOSS_B, number, typed, words};
use crate::served::{Served, regard, said};
use crate::views::{TEXT, and_drawn, fragment, is_quiet, opened, settled};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Token and probability of every bar.
const BARS: &str = "Array.from(document.querySelectorAll('#next li'), (li) => [li.querySelector('.piece').textContent, \
    Number(li.dataset.probability), li.dataset.before === undefined ? null : Number(li.dataset.before)])";

#[test]
fn a_newcomer_reads_one_sentence_and_the_first_suggestion_changes_bars_and_loss() {
    let Some(chrome) = Chrome::start() else { return };
    let served = Served::start(0);
    chrome.open(&served.address);
    settled(&chrome);
    assert!(words(&chrome, "#intro").contains("predicts what comes next"));
    assert_eq!(chrome.eval("document.querySelectorAll('#tries button').length"), json!(3));
    let text = chrome.eval("document.getElementById('text').value").as_str().expect("a text").to_owned();
    let bars = chrome.eval(BARS);
    assert_eq!(bars.as_array().expect("bars").len(), 10);
    // The bars are what the command says.
    let lens =
        |edits: &str| said(&["lens", "--text", &text, "--edits", edits, "--json", "--quiet"])[0]["rows"].as_array().expect("rows").clone();
    let last = lens("").pop().expect("a layer");
    assert!((number(&bars[0][1]) - number(&last["probability"])).abs() < 1e-6, "{bars} is not {last}");
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.getElementById('try-1').click()");
    });
    chrome.wait("document.querySelector('#next li[data-before]')");
    let after = chrome.eval(BARS);
    assert_ne!(after, bars, "the bars do not move");
    let edited = lens("scale=off").pop().expect("a layer");
    assert!((number(&after[0][1]) - number(&edited["probability"])).abs() < 1e-6, "{after} is not {edited}");
    // Beside each bar is the one before the edit.
    for bar in after.as_array().expect("bars") {
        let was = bars.as_array().expect("bars").iter().find(|one| one[0] == bar[0]).map_or(Value::Null, |one| one[1].clone());
        assert!(bar[2] == was || was.is_null(), "{bar} was {was}");
    }
    assert!(number(&chrome.eval(LOSS_B)) > number(&chrome.eval(LOSS_A)) + 0.5);
    // A chosen token has its own prediction.
    chrome.eval("document.getElementById('token-3').click()");
    chrome.wait("document.getElementById('next').textContent.includes('token 3')");
    assert_ne!(chrome.eval(BARS), after);
    is_quiet(&served, &chrome);
}

#[test]
fn the_tour_has_six_steps_can_be_left_and_taken_again_and_terms_are_explained() {
    let Some((served, chrome)) = opened(&[]) else { return };
    for _ in 0..2 {
        chrome.eval("document.getElementById('start-tour').click()");
        for step in 1..=6 {
            assert!(words(&chrome, "#tour").starts_with(&format!("{step} of 6")), "{}", words(&chrome, "#tour"));
            assert_eq!(chrome.eval("document.querySelectorAll('.pointed').length"), json!(1));
            chrome.key("Enter");
        }
        assert_eq!(chrome.eval("document.getElementById('tour').open"), json!(false));
    }
    chrome.eval("document.getElementById('start-tour').click()");
    chrome.key("Escape");
    assert_eq!(chrome.eval("[document.getElementById('tour').open, document.querySelectorAll('.pointed').length]"), json!([false, 0]));
    let unexplained = chrome.eval(
        "Array.from(document.querySelectorAll('abbr.term')).filter((term) => !(term.title.length > 20)).map((term) => term.textContent)",
    );
    assert_eq!(unexplained, json!([]));
    assert!(number(&chrome.eval("document.querySelectorAll('abbr.term').length")) >= 4.0);
    is_quiet(&served, &chrome);
}

/// A text of some thousand tokens.
fn long_text(sentences: usize) -> String {
    "Leo and Ben went to the library. The lazy cat sees the happy horses. ".repeat(sentences)
}

/// The text box is filled without waiting; the page's clock says when, and how late it is itself.
fn fill(chrome: &Chrome, text: &str) {
    chrome.eval(&format!(
        "{{
            const box = document.getElementById('text');
            delete window.shown;
            box.value = {};
            box.dispatchEvent(new Event('input'));
            window.begun = performance.now();
            window.timer = new Promise((done) => setTimeout(() => done(performance.now() - window.begun), 180));
        }}",
        json!(text)
    ));
}

/// How long a short text takes now, on a machine that may be busy with other tests.
fn asked_shortly(served: &Served, text: &str) -> Duration {
    let begun = Instant::now();
    assert_eq!(served.asked("POST", "/api/run", &json!({ "model": 0, "text": text, "edits": "" }).to_string()).0, 200);
    begun.elapsed()
}

/// Bounds are relative to what the machine does beside it: a timer of the page, and a short text; cancelling may take three attempts.
#[test]
fn long_work_is_visible_and_can_be_cancelled() {
    let Some((served, chrome)) = opened(&[]) else { return };
    let before = chrome.eval("document.getElementById('about-text').textContent");
    // When the sign appears, by the page's own clock.
    chrome.eval(
        "new MutationObserver(() => { if (!document.getElementById('busy').hidden) window.shown ??= performance.now() - \
        window.begun }).observe(document.getElementById('busy'), { attributes: true })",
    );
    let long = long_text(800);
    let cancelled = (0..3).any(|attempt| {
        let usual = asked_shortly(&served, &format!("David{}", " went".repeat(attempt)));
        fill(&chrome, &long);
        chrome.wait("window.shown !== undefined");
        let (shown, timer) = (number(&chrome.eval("window.shown")), number(&chrome.eval("window.timer")));
        assert!(shown < timer + 150.0, "a sign of work after {shown} ms, a timer of 180 ms after {timer} ms");
        assert_eq!(
            chrome.eval("['view', 'tokens', 'next'].map((id) => document.getElementById(id).getAttribute('aria-busy'))"),
            json!(["true", "true", "true"])
        );
        if attempt == 0 {
            chrome.shot("busy");
        }
        // The server ends the work: another text is answered at once.
        chrome.eval("document.getElementById('cancel').click()");
        let answered = asked_shortly(&served, &format!("Emma{}", " went".repeat(attempt)));
        eprintln!("a sign of work after {shown} ms (a timer of 180 ms: {timer} ms), another text after {answered:?} (usually {usual:?})");
        // The text from before is back.
        chrome.wait("document.getElementById('busy').hidden");
        chrome.wait(&format!("document.getElementById('text').value === {}", json!(TEXT)));
        assert_eq!(chrome.eval("document.getElementById('about-text').textContent"), before);
        // 300 ms on a quiet machine; the whole text takes ten seconds and more.
        answered < Duration::from_secs(2) + 5 * usual
    });
    assert!(cancelled, "another text waits for {} letters that were cancelled", long.len());
    is_quiet(&served, &chrome);
}

#[test]
fn a_long_text_shows_layers_that_are_done_and_their_heads() {
    let Some((served, chrome)) = opened(&[]) else { return };
    // Whether a number of layers and a picture of a head were shown while the run was under way.
    chrome.eval(
        "import('/state.js').then(({ runs, state }) => {
            const bar = document.getElementById('busy-bar');
            new MutationObserver(() => {
                if (bar.hasAttribute('value') && bar.max === 3) window.early ??= runs.B.of !== state.text;
            }).observe(bar, { attributes: true });
            setInterval(() => {
                if (runs.B.of === state.text && window.early !== undefined) window.pictured ??= false;
                if (document.querySelector('#view[data-preview] .heads canvas:not([width=\"1\"])')) window.pictured ??= true;
            }, 20);
        })",
    );
    fill(&chrome, &long_text(700));
    chrome.wait("window.early !== undefined");
    assert_eq!(chrome.eval("window.early"), json!(true), "no layer was counted before the run was done");
    chrome.wait("window.pictured !== undefined");
    assert_eq!(chrome.eval("window.pictured"), json!(true), "no head was drawn before the run was done");
    chrome.eval("document.getElementById('cancel').click()");
    chrome.wait(&format!("document.getElementById('text').value === {}", json!(TEXT)));
    is_quiet(&served, &chrome);
}

/// On a telephone a tab brings its view into sight, and no label of a drawing is cut off.
#[test]
fn a_narrow_screen_shows_the_view_that_was_chosen() {
    let Some((served, chrome)) = opened(&[]) else { return };
    chrome.size(390, 844, false);
    let cut = chrome.eval(
        "Array.from(document.querySelectorAll('#view svg[role=img]')).flatMap((drawing) => { const { width, height } = \
        drawing.viewBox.baseVal; return Array.from(drawing.querySelectorAll('text:not([transform])')).filter((text) => { const box = \
        text.getBBox(); return box.x < -0.5 || box.y < -2 || box.x + box.width > width + 0.5 || box.y + box.height > height + 2; \
        }).map((text) => text.textContent); })",
    );
    assert_eq!(cut, json!([]), "labels that are cut off");
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.getElementById('tab-map').click()");
    });
    let top = number(&chrome.eval("document.getElementById('centre').getBoundingClientRect().top"));
    assert!(top.abs() < 60.0, "the view is {top} pixels away");
    is_quiet(&served, &chrome);
}

/// Every slider says its value in words, on the page and in the lesson.
#[test]
fn sliders_have_value_texts() {
    let Some((served, chrome)) = opened(&[]) else { return };
    let silent = "Array.from(document.querySelectorAll('input[type=range]')).filter((one) => \
        !one.getAttribute('aria-valuetext')).map((one) => one.id)";
    assert_eq!(chrome.eval(silent), json!([]));
    for (step, sliders) in [(3, 2), (4, 1), (5, 1)] {
        chrome.open(&format!("{}{}", served.address, fragment(&[("v", "lesson"), ("n", &step.to_string())])));
        chrome.wait("document.querySelector('.question .plain')");
        chrome.eval("document.querySelector('.question .plain').click()");
        assert_eq!(chrome.eval("document.querySelectorAll('#view input[type=range]').length"), json!(sliders), "step {step}");
        assert_eq!(chrome.eval(silent), json!([]), "step {step}");
    }
    is_quiet(&served, &chrome);
}

#[test]
fn heads_are_sorted_and_filtered_and_edits_are_chips() {
    let Some((served, chrome)) = opened(&[("e", "L1.H2=zero/scale=off")]) else { return };
    chrome.wait("document.querySelector('.heads .label')");
    let choose = |index: usize, value: &str| {
        and_drawn(&chrome, |chrome| {
            chrome.eval(&format!(
                "{{ const list = document.querySelectorAll('#controls select')[{index}]; list.value = {}; \
                list.dispatchEvent(new Event('change')) }}",
                json!(value)
            ));
        });
    };
    choose(0, "previous");
    let order = "Promise.all(Array.from(document.querySelectorAll('.heads button'), (button) => Number(/previous token \
        ([-\\d.e]+)/.exec(button.title)[1])))";
    let values: Vec<f64> = chrome.eval(order).as_array().expect("values").iter().map(number).collect();
    assert!(values.len() == 12 && values.windows(2).all(|pair| pair[0] >= pair[1]), "{values:?}");
    choose(1, "previoustoken");
    let named = chrome.eval("Array.from(document.querySelectorAll('.heads .label'), (label) => label.textContent)");
    assert!(!named.as_array().expect("names").is_empty());
    assert!(named.as_array().expect("names").iter().all(|name| name.as_str().expect("a name").contains("previous token")), "{named}");
    // Each edit is a chip, as the server parsed it; a chip is removed.
    let chips = "Array.from(document.querySelectorAll('.chips li'), (chip) => chip.firstChild.textContent)";
    assert_eq!(chrome.eval(chips).as_array().map(Vec::len), Some(2));
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.querySelector('.chips button[aria-label=\"remove scale=off\"]').click()");
    });
    assert_eq!(chrome.eval("document.getElementById('edits').value"), json!("L1.H2=zero"));
    assert_eq!(chrome.eval(chips), json!(["L1.H2=zero"]));
    is_quiet(&served, &chrome);
}

#[test]
fn the_lens_is_a_grid_and_heads_are_drawn_together() {
    let Some((served, chrome)) = opened(&[("v", "lens")]) else { return };
    let last = said(&["lens", "--text", TEXT, "--json", "--quiet"])[0]["rows"].as_array().expect("rows").clone();
    let shown = chrome.eval(
        "Array.from(document.querySelectorAll('table.lens tbody tr'), (row) => Number([...row.querySelectorAll('td \
        button')].at(-1).dataset.value))",
    );
    // From the last layer at the top to the embedding.
    for (row, value) in last.iter().rev().zip(shown.as_array().expect("numbers")) {
        assert!((number(&row["probability"]) - number(value)).abs() < 1e-6, "{value} is not {row}");
    }
    chrome.eval("document.querySelector('table.lens tbody tr td button').click()");
    assert_eq!(chrome.eval("document.querySelectorAll('#lens-list tbody tr').length"), json!(10));
    // Several heads in several colours, the map beside them.
    chrome.open(&format!("{}&v=head&l=1&h=2&hs=2.3&t={}", served.address, TEXT.replace(' ', "%20")));
    chrome.wait("document.getElementById('view').dataset.drawn");
    assert_eq!(
        chrome.eval("new Set(Array.from(document.querySelectorAll('#view line'), (line) => line.getAttribute('stroke'))).size"),
        json!(2)
    );
    assert_eq!(chrome.eval("document.querySelectorAll('#view canvas.small-map').length"), json!(1));
    is_quiet(&served, &chrome);
}

#[test]
fn a_file_has_a_title_a_note_a_head_and_says_where_it_comes_from() {
    let Some(chrome) = Chrome::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("look.html");
    let (path, out) = (file.to_str().expect("UTF-8"), folder.path().to_str().expect("UTF-8"));
    let line = [
        "look",
        "--text",
        TEXT,
        "--html",
        path,
        "--title",
        "A <b>title</b>",
        "--note",
        "Why it matters.",
        "--head",
        "1.2",
        "--quiet",
        "--out",
        out,
    ];
    assert!(regard(&line).status().expect("it runs").success());
    chrome.open(&format!("file://{path}"));
    chrome.wait("document.getElementById('view').dataset.drawn");
    assert_eq!(chrome.eval("document.title"), json!("A <b>title</b>"));
    assert_eq!(words(&chrome, "#intro"), "A <b>title</b> Why it matters.");
    assert_eq!(chrome.eval("import('regard/state.js').then(({ state }) => [state.view, state.layer, state.head])"), json!(["head", 1, 2]));
    let footer = words(&chrome, "#footer");
    assert!(footer.contains("--head 1.2") && footer.contains(" by regard "), "{footer}");
    chrome.shot("file");
    assert!(chrome.complaints.borrow().is_empty(), "{:?}", chrome.complaints.borrow());
    // A head without its layer is refused in words.
    let output = regard(&["look", "--head", "2", "--out", out]).stderr(std::process::Stdio::piped()).output().expect("it runs");
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("--head L.H"));
}

/// Texts of every script are shown as text, and nothing is wider than the window, at twice the size too.
#[test]
fn all_scripts_and_a_large_zoom_fit() {
    let Some((served, chrome)) = opened(&[]) else { return };
    chrome.size(640, 450, false);
    for view in ["head", "lens", "lesson", "map", "neuron", "heads"] {
        and_drawn(&chrome, |chrome| {
            chrome.eval(&format!("document.getElementById('tab-{view}').click()"));
        });
        let wide = number(&chrome.eval("document.documentElement.scrollWidth - window.innerWidth"));
        assert!(wide <= 1.0, "{view} is {wide} pixels too wide at 200 %");
    }
    typed(&chrome, "Emma");
    is_quiet(&served, &chrome);
}
