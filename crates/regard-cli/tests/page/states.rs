//! What a view shows while it is computed, when there is nothing to compute, and when its numbers are differences; and that what was chosen
//! is in sight.

use crate::chrome::Chrome;
use crate::first_look::{LOSS_A, LOSS_B, number, typed, words};
use crate::models::{SCRIPTS, of_bytes};
use crate::served::Served;
use crate::views::{TEXT, and_drawn, fragment, is_quiet, opened, settled};
use serde_json::json;

fn show(chrome: &Chrome, view: &str) {
    and_drawn(chrome, |chrome| {
        chrome.eval(&format!("document.getElementById('tab-{view}').click()"));
    });
}

fn go(chrome: &Chrome, changes: &str) {
    and_drawn(chrome, |chrome| {
        chrome.eval(&format!("import('/state.js').then(({{ go }}) => go({changes}))"));
    });
}

/// A page whose scripts were changed before they ran.
fn opened_with(script: &str, address: &[(&str, &str)]) -> Option<(Served, Chrome)> {
    let chrome = Chrome::start()?;
    let served = Served::start(0);
    chrome.call("Page.addScriptToEvaluateOnNewDocument", json!({ "source": script }));
    chrome.open(&format!("{}{}", served.address, fragment(address)));
    chrome.wait("document.getElementById('view').dataset.drawn");
    Some((served, chrome))
}

#[test]
fn a_view_without_anything_to_draw_says_what_to_do() {
    let Some((served, chrome)) = opened(&[]) else { return };
    typed(&chrome, "");
    for view in ["head", "map", "neuron", "lesson", "heads"] {
        show(&chrome, view);
        assert!(words(&chrome, "#empty").contains("type a text"), "{view}: {}", words(&chrome, "#view"));
        assert_eq!(chrome.eval("document.querySelectorAll('#view canvas').length"), json!(0), "{view} draws one token");
    }
    // One token has a prediction, and the lens shows it.
    show(&chrome, "lens");
    assert_eq!(chrome.eval("document.querySelectorAll('table.lens tbody tr').length"), json!(4));
    show(&chrome, "heads");
    chrome.shot("empty");
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.querySelector('#empty button').click()");
    });
    assert!(words(&chrome, "#about-text").contains(" tokens, loss "));
    assert_eq!(chrome.eval("document.querySelectorAll('#view .heads canvas').length"), json!(12));
    is_quiet(&served, &chrome);
}

/// The lens takes long, as on a long text: the view is dimmed under its tab, the work is named, and it is cancelled and begun again.
#[test]
fn a_slow_view_is_dimmed_and_can_be_cancelled() {
    let slow = "const real = window.fetch;
        window.fetch = async (path, options) => {
            if (!String(path).includes('/lens')) return real(path, options);
            window.asked = (window.asked ?? 0) + 1;
            const late = new Promise((done) => setTimeout(done, window.asked > 1 ? 0 : 1e6));
            const over = new Promise((_, fail) =>
                options.signal.addEventListener('abort', () => fail(new DOMException('aborted', 'AbortError'))));
            await Promise.race([late, over]);
            return real(path, options);
        };";
    let Some((served, chrome)) = opened_with(slow, &[("t", TEXT)]) else { return };
    chrome.eval("document.getElementById('tab-lens').click()");
    chrome.wait("!document.getElementById('busy').hidden");
    assert!(words(&chrome, "#busy-words").starts_with("Lens: "), "{}", words(&chrome, "#busy-words"));
    assert_eq!(
        chrome.eval(
            "[document.getElementById('tab-lens').ariaSelected, document.getElementById('view').getAttribute('aria-busy'),
                Number(getComputedStyle(document.getElementById('view')).opacity) < 0.6]"
        ),
        json!(["true", "true", true])
    );
    chrome.eval("document.getElementById('cancel').click()");
    chrome.wait("document.getElementById('view').textContent.startsWith('Cancelled')");
    assert_eq!(chrome.eval("document.getElementById('busy').hidden"), json!(true));
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.querySelector('#view button').click()");
    });
    assert_eq!(chrome.eval("[document.querySelectorAll('table.lens').length, window.asked]"), json!([1, 2]));
    is_quiet(&served, &chrome);
}

/// Heads below the edge of the window are computed when they come into sight.
#[test]
fn only_heads_in_sight_of_a_long_text_are_computed() {
    let Some((served, chrome)) = opened(&[]) else { return };
    chrome.size(1280, 500, false);
    chrome.requests.borrow_mut().clear();
    typed(&chrome, &"Leo and Ben went to the library. The lazy cat sees the happy horses. ".repeat(120));
    assert!(number(&chrome.eval("import('/state.js').then(({ runs }) => runs.B.tokens.length)")) > 4096.0);
    let asked = |layer: usize| {
        chrome.eval("1");
        chrome.requests.borrow().iter().filter(|address| address.contains(&format!("tile?layer={layer}&"))).count()
    };
    assert!(asked(0) > 0 && asked(2) == 0, "{} and {} requests", asked(0), asked(2));
    chrome.eval("document.querySelector('[data-head=\"2.0\"]').scrollIntoView()");
    chrome.wait("document.querySelector('[data-head=\"2.0\"] canvas').width > 1");
    assert!(asked(2) > 0);
    is_quiet(&served, &chrome);
}

#[test]
fn words_about_colours_are_true_of_differences() {
    // A head that the edit reaches.
    let Some((served, chrome)) = opened(&[("e", "L1.H2=zero"), ("s", "D"), ("l", "2")]) else { return };
    for view in ["head", "map", "lens", "heads"] {
        show(&chrome, view);
        let said = words(&chrome, "#what") + &words(&chrome, "#view");
        assert!(!said.to_lowercase().contains("bright"), "{view}: {said}");
        if view != "head" {
            assert!(said.contains("lue") && said.contains("orange"), "{view}: {said}");
        }
    }
    // The loss from before the edit stands beside that of the text.
    let before = words(&chrome, "#loss-a");
    assert!(words(&chrome, "#about-text").contains(&format!("({before} without the edits)")), "{}", words(&chrome, "#about-text"));
    is_quiet(&served, &chrome);
}

#[test]
fn disabled_buttons_look_disabled_and_the_temperature_is_that_of_scores() {
    let Some((served, chrome)) = opened(&[]) else { return };
    let alike = chrome.eval(
        "Array.from(document.querySelectorAll('button:disabled'), (button) => {
            const [off, on] = [getComputedStyle(button), getComputedStyle(document.getElementById('undo'))];
            return [button.textContent, off.color !== on.color, off.borderStyle !== on.borderStyle, off.cursor];
        }).filter(([, colour, border, cursor]) => !colour || !border || cursor !== 'not-allowed')",
    );
    assert_eq!(alike, json!([]));
    assert!(number(&chrome.eval("document.querySelectorAll('button:disabled').length")) >= 4.0);
    assert!(words(&chrome, "#surgery").contains("temperature of the scores: 1"));
    is_quiet(&served, &chrome);
}

/// A model that is not named by itself: the button stands above the thumbnails, which get the names, and the table's column is not cut off.
#[test]
fn heads_are_named_above_the_table_and_no_name_is_cut_off() {
    let large = "const real = window.fetch;
        window.fetch = async (path, options) => {
            const answer = await real(path, options);
            if (path !== '/api/models') return answer;
            const said = await answer.json();
            said.models[0].parameters = 1e9;
            return new Response(JSON.stringify(said), { status: 200 });
        };";
    let Some((served, chrome)) = opened_with(large, &[("t", TEXT)]) else { return };
    assert_eq!(chrome.eval("document.querySelectorAll('.heads .label').length"), json!(0));
    let place = chrome.eval(
        "['label', null].map((id) => (id ? document.getElementById(id) : document.querySelector('.heads')).getBoundingClientRect().top)",
    );
    assert!(number(&place[0]) < number(&place[1]), "{place}");
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.getElementById('label').click()");
    });
    chrome.wait("document.querySelectorAll('.heads .label').length === 12");
    assert_eq!(words(&chrome, "[data-head=\"1.2\"] .label"), "previous token");
    let cut = chrome.eval(
        "(() => {
            const table = [...document.querySelectorAll('#view table')].find((one) => one.textContent.includes('labels'));
            const edge = table.parentElement.getBoundingClientRect().right;
            const at = [...table.querySelectorAll('th')].findIndex((th) => th.textContent === 'labels');
            return [...table.querySelectorAll('tr')].map((row) => row.cells[at])
                .filter((cell) => cell.getBoundingClientRect().right > edge + 1 || cell.scrollWidth > cell.clientWidth + 1)
                .map((cell) => cell.textContent);
        })()",
    );
    assert_eq!(cut, json!([]), "names that are cut off");
    is_quiet(&served, &chrome);
}

#[test]
fn names_come_into_the_head_view_when_they_are_known() {
    let late = "const real = window.fetch;
        window.fetch = async (path, options) => {
            if (path === '/api/labels') await new Promise((done) => { window.name_them = done; });
            return real(path, options);
        };";
    let Some((served, chrome)) = opened_with(late, &[("t", TEXT), ("v", "head"), ("l", "1"), ("h", "2")]) else { return };
    assert!(!words(&chrome, "#view").contains("previous token"));
    chrome.wait("window.name_them");
    chrome.eval("window.name_them()");
    chrome.wait("document.querySelector('#view p').textContent.startsWith('Layer 1, head 2 (previous token): ')");
    is_quiet(&served, &chrome);
}

/// The command of the card names the model and gives the loss that is shown, for other models than the built-in one.
#[test]
fn the_command_of_the_card_names_the_model() {
    let Some(chrome) = Chrome::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let model = of_bytes(folder.path());
    let path = model.to_str().expect("UTF-8");
    let served = Served::with(&["serve", "--no-open", "--json", path], |command| command);
    chrome.open(&format!("{}{}", served.address, fragment(&[("t", SCRIPTS), ("e", "L0.H1=zero")])));
    // Its heads have no names: it knows few of the bytes of the stories.
    chrome.wait("document.getElementById('view').dataset.drawn");
    let line = words(&chrome, "#command");
    assert!(line.contains(path) && line.ends_with("--edits L0.H1=zero"), "{line}");
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_regard")).parent().expect("a folder");
    let output = std::process::Command::new("/bin/sh")
        .args(["-c", &line])
        .current_dir(folder.path())
        .env("PATH", program)
        .output()
        .expect("a shell");
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    let (intact, edited) = (number(&chrome.eval(LOSS_A)), number(&chrome.eval(LOSS_B)));
    assert!((intact - edited).abs() > 1e-4, "the edit changes nothing");
    assert!(printed.contains(&format!("loss {edited:.4} nats")), "{line}: {printed}; the page has {edited}");
    is_quiet(&served, &chrome);
}

/// The first text is continued in its own language, and without the scale it is not.
#[test]
fn the_first_text_is_continued_in_its_language() {
    let Some(chrome) = Chrome::start() else { return };
    let served = Served::start(0);
    chrome.open(&format!("{}{}", served.address, fragment(&[("e", "scale=off")])));
    settled(&chrome);
    chrome.eval("document.getElementById('write').click()");
    chrome.wait("document.getElementById('before').textContent.length > 60 && document.getElementById('after').textContent.length > 40");
    let (before, after) = (words(&chrome, "#before"), words(&chrome, "#after"));
    // Letters and marks of its stories; single bytes and brackets are not among them.
    let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphabetic() || " .,\n\"?!'".contains(c));
    assert!(before.starts_with(" went to the ") && plain(&before), "{before:?}");
    assert!(!plain(&after), "without the scale: {after:?}");
    is_quiet(&served, &chrome);
}

/// What was chosen is in sight: the open cell of the lens, all of the map after the window has another size, both pictures of a comparison.
#[test]
fn what_was_chosen_is_in_sight() {
    let Some((served, chrome)) = opened(&[("v", "lens")]) else { return };
    let seen = chrome.eval(
        "(() => {
            const [cell, box] = [document.querySelector('table.lens [aria-pressed=true]'), document.querySelector('#view .scroll')]
                .map((node) => node.getBoundingClientRect());
            return [box.left <= cell.left, cell.right <= box.right + 1, box.scrollWidth];
        })()",
    );
    assert_eq!((&seen[0], &seen[1]), (&json!(true), &json!(true)), "the open cell is outside of the grid's window");
    show(&chrome, "map");
    chrome.size(1920, 1080, false);
    let covers = "import('/map.js').then(({ mapShown }) => { const map = mapShown(); return Math.abs(map.n / map.zoom - map.side) < 1; })";
    chrome.wait(covers);
    // Where one has zoomed, the place stays.
    chrome.eval("import('/map.js').then(({ mapShown }) => mapShown().zoomAt(300, 300, 0.5))");
    let zoom = chrome.eval("import('/map.js').then(({ mapShown }) => mapShown().zoom)");
    chrome.size(1280, 900, false);
    chrome.wait("import('/map.js').then(({ mapShown }) => mapShown().canvas.width < 700)");
    assert_eq!(chrome.eval("import('/map.js').then(({ mapShown }) => mapShown().zoom)"), zoom);
    go(&chrome, "{ view: 'heads', other: 'Leo and Ben went to the library.' }");
    chrome.wait("document.querySelector('.heads .second')");
    let apart = chrome.eval(
        "(() => {
            const [at, name] = ['.at', '.label'].map((one) => document.querySelector('.heads button ' + one).getBoundingClientRect());
            return Math.abs(at.left + at.right - name.left - name.right) / 2;
        })()",
    );
    assert!(number(&apart) < 2.0, "the number of a head is {apart} pixels beside its name");
    is_quiet(&served, &chrome);
}

/// On a telephone the tour does not cover what it points at, and a suggestion brings what it changes into sight.
#[test]
fn a_narrow_screen_shows_what_the_tour_and_the_suggestions_are_about() {
    let Some((served, chrome)) = opened(&[]) else { return };
    chrome.size(390, 844, false);
    chrome.call("Emulation.setEmulatedMedia", json!({ "features": [{ "name": "prefers-reduced-motion", "value": "reduce" }] }));
    chrome.eval("document.getElementById('start-tour').click()");
    for step in 1..=6 {
        let place = chrome
            .eval("[document.querySelector('.pointed'), document.getElementById('tour')].map((node) => node.getBoundingClientRect().top)");
        let tabs = chrome.eval("document.querySelector('.pointed').id === 'tabs'") == true;
        assert!(tabs || number(&place[0]) < number(&place[1]) - 40.0, "step {step}: {place}");
        chrome.key("Enter");
    }
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.getElementById('try-1').click()");
    });
    let place = chrome.eval("document.getElementById('next').getBoundingClientRect().top");
    assert!(number(&place) < 844.0, "the bars are {place} pixels away");
    is_quiet(&served, &chrome);
}

/// Surgery by keyboard alone: a slider, a mask, a chip that is removed.
#[test]
fn edits_are_made_and_removed_by_keyboard() {
    let Some((served, chrome)) = opened(&[]) else { return };
    chrome.eval("document.body.focus()");
    let reach = |selector: &str| {
        let found = (0..160).any(|_| {
            chrome.key("Tab");
            chrome.eval(&format!("document.activeElement.matches({})", json!(selector))) == true
        });
        assert!(found, "{selector} cannot be reached by keyboard");
    };
    let edits = || chrome.eval("document.getElementById('edits').value");
    reach("#scale");
    and_drawn(&chrome, |chrome| chrome.key("ArrowRight"));
    assert!(edits().as_str().is_some_and(|edits| edits.starts_with("scale=0.2")), "{}", edits());
    reach("#mask");
    and_drawn(&chrome, |chrome| chrome.key("f"));
    assert!(edits().as_str().is_some_and(|edits| edits.starts_with("mask=full/scale=")), "{}", edits());
    reach(".chips button");
    and_drawn(&chrome, |chrome| chrome.key("Enter"));
    assert!(edits().as_str().is_some_and(|edits| edits.starts_with("scale=0.2")), "{}", edits());
    reach("#intact");
    and_drawn(&chrome, |chrome| chrome.key("Enter"));
    assert_eq!(edits(), json!(""));
    is_quiet(&served, &chrome);
}
