//! The first minutes with the page: fitting examples, a readable map, true words, controls that do what they say.

use crate::chrome::Chrome;
use crate::served::Served;
use crate::views::{TEXT, and_drawn, is_quiet, opened, settled};
use serde_json::{Value, json};

pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

pub fn words(chrome: &Chrome, selector: &str) -> String {
    chrome.eval(&format!("document.querySelector({})?.textContent ?? ''", json!(selector))).as_str().expect("words").to_owned()
}

pub fn typed(chrome: &Chrome, text: &str) {
    and_drawn(chrome, |chrome| {
        chrome.eval(&format!(
            "{{ const box = document.getElementById('text'); box.value = {}; box.dispatchEvent(new Event('input')) }}",
            json!(text)
        ));
    });
}

pub const LOSS_A: &str = "Number(document.getElementById('loss-a').dataset.value)";
pub const LOSS_B: &str = "Number(document.getElementById('loss-b').dataset.value)";

#[test]
fn the_first_text_fits_the_model_and_examples_show_what_they_name() {
    let Some(chrome) = Chrome::start() else { return };
    let served = Served::start(0);
    chrome.open(&served.address);
    settled(&chrome);
    let intact = number(&chrome.eval(LOSS_A));
    assert!(intact < 1.2, "the first text is not the model's language: {intact} nats");
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.getElementById('scale-off').click()");
    });
    let without = number(&chrome.eval(LOSS_B));
    assert!(without > intact + 0.5, "{without} without the scale, {intact} with it");
    let titles = chrome.eval("Array.from(document.querySelectorAll('#example option'), (o) => o.textContent).slice(1)");
    assert_eq!(titles, json!(["Previous token", "Induction", "First-token sink", "Without the scale", "Without the mask"]));
    let choose = |at: usize| {
        and_drawn(&chrome, |chrome| {
            chrome.eval(&format!(
                "{{ const list = document.getElementById('example'); list.value = '{at}'; list.dispatchEvent(new Event('change')) }}"
            ));
        });
        assert!(!words(&chrome, "#example-what").is_empty());
    };
    let mean = |name: &str| {
        number(&chrome.eval(&format!(
            "import('/state.js').then(async ({{ runs, state }}) => (await (await \
                import('/api.js')).ask(`/api/run/${{runs.B.run}}/heads?layer=${{state.layer}}`))[state.head].{name})"
        )))
    };
    choose(0);
    assert!(mean("previous") > 0.7, "the head of the previous token: {}", mean("previous"));
    choose(1);
    // The text is there twice: most tokens of the second time look at what followed the same token the first time.
    let found = chrome.eval(
        "Promise.all(['/state.js', '/draw.js'].map((name) => import(name))).then(async ([{ runs, state }, { rowsOfHead }]) => {
            const { tokens } = runs.B;
            const n = tokens.length;
            const weights = await rowsOfHead(state.layer, state.head, 0, n, n);
            const half = Math.ceil(n / 2) + 1;
            let found = 0;
            for (let i = half; i < n; i++) {
                const row = weights.subarray(i * n, (i + 1) * n);
                const best = row.indexOf(Math.max(...row));
                if (best > 0 && best < i && tokens[best - 1].id === tokens[i].id) found += 1;
            }
            return found / (n - half);
        })",
    );
    assert!(number(&found) > 0.5, "the head of the repeated text finds what followed in {found} of the rows");
    choose(2);
    assert!(mean("first") > 0.6, "the head of the first token: {}", mean("first"));
    choose(3);
    assert!(number(&chrome.eval(LOSS_B)) > number(&chrome.eval(LOSS_A)) + 0.5);
    choose(4);
    assert!(number(&chrome.eval(LOSS_B)) > number(&chrome.eval(LOSS_A)) + 0.5);
    is_quiet(&served, &chrome);
}

#[test]
fn no_label_of_the_map_covers_a_cell() {
    let Some((served, chrome)) = opened(&[("v", "map"), ("l", "2"), ("h", "3")]) else { return };
    chrome.wait("import('/map.js').then(({ mapShown }) => mapShown()?.tiles.get(mapShown().step + ',0,0')?.values)");
    // Every cell of the first rows and columns has its own colour.
    let wrong = chrome.eval(
        "Promise.all(['/map.js', '/colour.js', '/draw.js'].map((name) => import(name))).then(([{ mapShown }, { colour }, { scaleKind }]) \
            => {
            const map = mapShown();
            map.draw();
            const wrong = [];
            for (const [i, j] of [[0, 0], [1, 0], [1, 1], [2, 0], [2, 2], [5, 0]]) {
                const at = (token, origin) => Math.round(70 * map.ratio + (token + 0.5 - origin) / map.zoom);
                const [r, g, b, alpha] = map.ink.getImageData(at(j, map.x), at(i, map.y), 1, 1).data;
                const wanted = colour(map.value(i, j), map.top, scaleKind(), false);
                if (alpha !== 255 || `rgb(${r},${g},${b})` !== wanted) wrong.push([i, j, r, g, b, alpha, wanted]);
            }
            if (map.under(30, 30) !== null) wrong.push('a label is a cell');
            return wrong;
        })",
    );
    assert_eq!(wrong, json!([]));
    assert!(words(&chrome, "#map-words").contains("each cell is one weight"));
    assert!(chrome.eval("document.querySelector('#map-bar .bar').textContent").as_str().expect("numbers").len() > 1);
    chrome.shot("map-short");
    is_quiet(&served, &chrome);
}

#[test]
fn a_long_text_is_not_one_dark_square() {
    let Some((served, chrome)) = opened(&[("v", "map"), ("l", "2"), ("h", "3")]) else { return };
    typed(&chrome, &"Leo and Ben went to the library. The lazy cat sees the happy horses. ".repeat(60));
    chrome.wait("import('/map.js').then(({ mapShown }) => mapShown()?.tiles.get(mapShown().step + ',0,0')?.values)");
    let dark = chrome.eval(
        "import('/map.js').then(({ mapShown }) => {
            const map = mapShown();
            map.draw();
            // Below the diagonal, without the labels.
            let [dark, all] = [0, 0];
            for (let i = 20; i < 400; i += 7) for (let j = 10; j < i; j += 7) {
                const [r, g, b] = map.ink.getImageData(Math.round(map.room + j), Math.round(map.room + i), 1, 1).data;
                all += 1;
                if (r + g + b < 150) dark += 1;
            }
            return dark / all;
        })",
    );
    assert!(number(&dark) < 0.5, "{dark} of the weights are dark");
    let caption = words(&chrome, "#map-words");
    let step = chrome.eval("import('/map.js').then(({ mapShown }) => mapShown().step)");
    assert!(caption.contains(&format!("each cell is {step} x {step} tokens")) && caption.contains("logarithmic"), "{caption}");
    // The caption follows the zoom, and tiles of one zoom are evicted.
    let seen = chrome.eval(
        "import('/map.js').then(async ({ mapShown }) => {
            const map = mapShown();
            for (let i = 0; i < 300; i++) map.tile(1, i % 16, Math.floor(i / 16));
            const kept = map.tiles.size;
            map.zoomAt(300, 300, 1 / 64);
            await new Promise(requestAnimationFrame);
            map.draw();
            return [kept, map.step];
        })",
    );
    assert!(number(&seen[0]) <= 201.0, "{seen}");
    assert_eq!(seen[1], json!(1));
    assert!(words(&chrome, "#map-words").contains("each cell is one weight"));
    chrome.shot("map-long");
    // Tiles outside of the text were asked for on purpose, and more at once than the server computes.
    chrome.complaints.borrow_mut().retain(|complaint| !complaint.contains("/tile?"));
    is_quiet(&served, &chrome);
}

#[test]
fn what_the_page_says_is_true() {
    let Some((served, chrome)) = opened(&[("e", "L1.H2=zero")]) else { return };
    // The command gives the loss that is shown.
    let line = words(&chrome, "#command");
    let folder = tempfile::tempdir().expect("a folder");
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_regard")).parent().expect("a folder");
    let output = std::process::Command::new("/bin/sh").args(["-c", &line]).current_dir(folder.path()).env("PATH", program).output();
    let printed = String::from_utf8(output.expect("a shell").stdout).expect("UTF-8");
    let loss = number(&chrome.eval(LOSS_B));
    assert!(printed.contains(&format!("loss {loss:.4} nats")), "{line}: {printed}; the page has {loss}");
    // B - A: blue where the edits lower a loss, orange where they raise it.
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.getElementById('side-D').click()");
    });
    let wrong = chrome.eval(
        "import('/state.js').then(({ runs }) => runs.B.losses.map((b, i) => [i + 1, b - runs.A.losses[i]]).filter(([, d]) => Math.abs(d) \
            > 0.05).filter(([i, d]) => {
            const [r, , blue] = getComputedStyle(document.getElementById(`token-${i}`)).backgroundColor.match(/\\d+/g).map(Number);
            return d > 0 ? r <= blue : r >= blue;
        }))",
    );
    assert_eq!(wrong, json!([]), "colours of losses that change");
    assert!(words(&chrome, "#legend").contains("Blue"));
    typed(&chrome, "");
    assert!(words(&chrome, "#about-text").starts_with("1 token") && !words(&chrome, "#about-text").contains("tokens"));
    assert!(words(&chrome, "#legend").contains("type a text") && words(&chrome, "#surgery").contains("type a text"));
    // The lesson draws the norm that it speaks of, and fetches each sweep once.
    typed(&chrome, TEXT);
    chrome.eval("document.activeElement.blur()");
    and_drawn(&chrome, |chrome| chrome.key("6"));
    chrome.eval("document.querySelectorAll('.dots button')[3].click()");
    chrome.wait("document.querySelector('.lesson[data-step=\"3\"] .plain')");
    chrome.eval("document.querySelector('.lesson .plain').click()");
    chrome.wait("document.querySelector('[data-name^=grad_norm_q]')");
    let fetched = || chrome.requests.borrow().iter().filter(|address| address.contains("/api/sweep")).count();
    assert_eq!(fetched(), 11);
    for value in [3, 7, 9] {
        chrome.eval(&format!(
            "{{ const slider = document.getElementById('lesson-width'); slider.value = {value}; slider.dispatchEvent(new Event('input')) }}"
        ));
    }
    chrome.wait("[...document.querySelectorAll('#view th')].some((th) => th.textContent === 'd_k = 512')");
    assert_eq!(fetched(), 11, "each move of the slider fetches the sweeps again");
    // The same numbers by the command that is named.
    let command = words(&chrome, "#sweep-command");
    let sweep = std::process::Command::new("/bin/sh")
        .args(["-c", &format!("{command} --json --quiet --out .")])
        .current_dir(folder.path())
        .env("PATH", program)
        .output();
    let tables: Value = serde_json::from_slice(&sweep.expect("a shell").stdout).expect("JSON");
    let shown = words(&chrome, "#view .swept");
    for row in tables[0]["rows"].as_array().expect("rows") {
        for name in ["mean_entropy", "mean_max_weight", "row_dq_median", "grad_norm_q", "score_std"] {
            let printed = chrome.eval(&format!("import('/base.js').then(({{ short }}) => short({}))", row[name]));
            assert!(shown.contains(printed.as_str().expect("a number")), "{name} {printed} is not shown by the lesson; {command}");
        }
    }
    is_quiet(&served, &chrome);
}

#[test]
fn controls_do_what_they_say() {
    let Some((served, chrome)) = opened(&[]) else { return };
    // Without edits there is one side.
    assert_eq!(
        chrome.eval(
            "['A', 'B', 'D'].map((side) => [document.getElementById(`side-${side}`).getAttribute('aria-pressed'), \
            document.getElementById(`side-${side}`).disabled])"
        ),
        json!([["true", false], ["false", true], ["false", true]])
    );
    // One tab stop for all thumbnails.
    assert_eq!(chrome.eval("document.querySelectorAll('#view .heads button[tabindex=\"0\"]').length"), json!(1));
    chrome.eval("document.querySelector('#view .heads button[tabindex=\"0\"]').focus()");
    chrome.key("ArrowRight");
    assert_eq!(chrome.eval("document.activeElement.dataset.head"), json!("0.1"));
    // Names of heads stand on the thumbnails in plain words; a small model has them without being asked.
    chrome.wait("document.querySelector('[data-head=\"1.2\"] .label')");
    assert_eq!(words(&chrome, "[data-head=\"1.2\"] .label"), "previous token");
    chrome.shot("heads-named");
    // Words can be chosen as tokens can.
    chrome.open(&format!("{}&v=head&w=1&t={}", served.address, TEXT.replace(' ', "%20")));
    chrome.wait("document.getElementById('view').dataset.drawn");
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.querySelectorAll('#view text.choose')[3].dispatchEvent(new MouseEvent('click', { bubbles: true }))");
    });
    assert_ne!(chrome.eval("import('/state.js').then(({ state }) => state.queries)"), json!(""));
    // The lens has neither layer nor head to choose.
    chrome.eval("document.activeElement.blur()");
    and_drawn(&chrome, |chrome| chrome.key("5"));
    assert_eq!(chrome.eval("document.querySelectorAll('#controls input[type=number]').length"), json!(0));
    assert_eq!(chrome.eval("document.getElementById('view').getAttribute('aria-busy')"), json!("false"));
    // A long name of a model does not make the page wider than a telephone.
    chrome.size(390, 900, false);
    chrome.eval("document.querySelector('#model option').textContent = 'a-very-long-name-of-a-model/'.repeat(8)");
    assert!(number(&chrome.eval("document.documentElement.scrollWidth - window.innerWidth")) <= 1.0);
    // Buttons in the banner can be read.
    chrome.size(1280, 900, false);
    chrome.eval("sessionStorage.clear()");
    chrome.open(&format!("http://127.0.0.1:{}/", served.port));
    chrome.wait("document.querySelector('#banner button')");
    let same = chrome.eval(
        "(() => { const style = getComputedStyle(document.querySelector('#banner button')); return style.color === \
        style.backgroundColor; })()",
    );
    assert_eq!(same, json!(false), "a button without contrast");
}

/// Parts of a character are shown as the character.
#[test]
fn tokens_that_cut_a_character_are_shown_as_text() {
    let Some((served, chrome)) = opened(&[]) else { return };
    let shown = chrome.eval(
        "import('/text.js').then(({ tokenTexts }) => {
            const token = (from, to, piece) => ({ from, to, piece, added: false });
            // Two characters of three bytes each, and a letter.
            return tokenTexts({ of: '\\u4f60\\u597da', tokens: [token(0, 2, 'xx'), token(2, 3, 'y'), token(3, 6, 'zzz'), token(6, 7, \
            'a')] });
        })",
    );
    assert_eq!(shown, json!(["\u{4f60}", "\u{b7}", "zzz", "a"]));
    is_quiet(&served, &chrome);
}
