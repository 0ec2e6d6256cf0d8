//! The lesson, from its first step to its last by keyboard alone, against the command's numbers.

use crate::first_look::{number, words};
use crate::served::said;
use crate::views::{TEXT, is_quiet, opened};
use serde_json::{Value, json};

/// Numbers that are printed with other digits than those of their value.
const MISPRINTED: &str = "import('/base.js').then(({ short }) => Array.from(document.querySelectorAll('#view .number[data-value], #view \
    td[data-value]')).filter((one) => one.textContent !== short(Number(one.dataset.value))).map((one) => [one.textContent, \
    one.dataset.value]))";

#[test]
fn the_lesson_is_walked_by_keyboard_and_every_number_is_the_librarys() {
    let Some((served, chrome)) = opened(&[("l", "1"), ("h", "2")]) else { return };
    chrome.eval("document.activeElement.blur()");
    chrome.key("6");
    chrome.wait("document.querySelector('.lesson')");
    let titles = [
        "Tokens",
        "Queries and keys",
        "Dot products",
        "The scale",
        "The mask",
        "Softmax",
        "A weighted sum of values",
        "All heads together",
        "The prediction",
    ];
    // The first twelve tokens are a text of their own.
    let first = chrome.eval(
        "import('/state.js').then(({ runs }) => new TextDecoder().decode(new \
        TextEncoder().encode(runs.B.of).slice(0, runs.B.tokens[11].to)))",
    );
    let first = first.as_str().expect("a text");
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("UTF-8");
    let look = said(&["look", "--text", first, "--layer", "1", "--head", "2", "--neuron", "11,4", "--json", "--quiet", "--out", out]);
    let table = |name: &str| look.as_array().expect("tables").iter().find(|table| table["name"] == name).expect("a table")["rows"].clone();
    let (coordinates, keys) = (table("neuron"), table("neuron_keys"));
    let printed = |value: &Value| {
        chrome.eval(&format!("import('/base.js').then(({{ short }}) => short({value}))")).as_str().expect("a number").to_owned()
    };
    let cell = |row: usize, column: usize| words(&chrome, &format!("#view td[data-row=\"{row}\"][data-column=\"{column}\"]"));
    for (step, title) in titles.into_iter().enumerate() {
        chrome.wait(&format!("document.querySelector('.lesson')?.dataset.step === '{step}'"));
        assert!(words(&chrome, ".lesson h2").ends_with(title), "{}", words(&chrome, ".lesson h2"));
        // The answer is not there before the question was asked.
        assert_eq!(chrome.eval("document.querySelectorAll('.question .verdict').length"), json!(0), "{title}");
        let reached = (0..40).any(|_| {
            chrome.key("Tab");
            chrome.eval("document.activeElement.closest('.question') !== null && document.activeElement.tagName === 'BUTTON'") == true
        });
        assert!(reached, "{title}: the question cannot be reached by keyboard");
        chrome.key("Enter");
        chrome.wait("document.querySelector('.question .verdict')");
        match step {
            1 => {
                // Queries, then keys: both by the name of their column.
                let rows = chrome.eval(
                    "Array.from(document.querySelectorAll('#view .steps'), (table) => \
                    Array.from(table.querySelectorAll('tbody tr:nth-child(12) td'), (td) => td.textContent))",
                );
                let of_key = chrome.eval(
                    "Array.from(document.querySelectorAll('#view .steps')[1].querySelectorAll('tbody \
                    tr:nth-child(5) td'), (td) => td.textContent)",
                );
                for (i, row) in coordinates.as_array().expect("rows").iter().enumerate() {
                    assert_eq!(rows[0][i], json!(printed(&row["q"])));
                    assert_eq!(of_key[i], json!(printed(&row["k"])));
                }
            }
            2..=4 => {
                let name = ["dot", "scaled", "score"][step - 2];
                for (key, row) in keys.as_array().expect("rows").iter().enumerate() {
                    let (shown, wanted) = (cell(11, key), printed(&row[name]));
                    assert_eq!(shown, wanted, "{title}, key {key}");
                }
            }
            5 => {
                for (key, row) in keys.as_array().expect("rows").iter().enumerate() {
                    assert_eq!(words(&chrome, &format!("#view td[data-weight=\"{key}\"]")), printed(&row["weight"]), "key {key}");
                }
                // With 100 added, exponentials overflow without the maximum, and nothing changes with it.
                chrome.eval(
                    "{ const slider = document.getElementById('lesson-shift'); slider.value = 100; slider.dispatchEvent(new \
                    Event('input')) }",
                );
                let row = chrome
                    .eval("Array.from(document.querySelectorAll('#view .question table tbody tr:last-child td'), (td) => td.textContent)");
                assert_eq!(row[1], json!("\u{221e}"));
                assert_eq!(row[3], json!("NaN"));
                assert!(
                    (row[4].as_str().and_then(|x| x.parse::<f64>().ok()).expect("a number") - number(&keys[11]["weight"])).abs() < 1e-3
                );
            }
            7 => {
                // The parts add up to the logit.
                let numbers = chrome.eval("Array.from(document.querySelectorAll('#view .number'), (one) => Number(one.dataset.value))");
                let numbers: Vec<f64> = numbers.as_array().expect("numbers").iter().map(number).collect();
                let (logit, parts) = numbers.split_last().expect("a logit");
                assert!((parts.iter().sum::<f64>() - logit).abs() < 1e-4 * (1.0 + logit.abs()), "{parts:?} is not {logit}");
            }
            8 => {
                let last = said(&["lens", "--text", first, "--json", "--quiet"])[0]["rows"]
                    .as_array()
                    .expect("rows")
                    .last()
                    .expect("a layer")
                    .clone();
                assert_eq!(words(&chrome, "#view .next .number"), printed(&last["probability"]));
                assert!(words(&chrome, ".ending").contains("regard learn softmax"));
            }
            _ => {}
        }
        assert_eq!(chrome.eval(MISPRINTED), json!([]), "{title}");
        chrome.shot(&format!("lesson-{}", step + 1));
        // Arrows turn the page from anywhere but a field or a table.
        chrome.eval("document.querySelector('.lesson h2').focus()");
        chrome.key("ArrowRight");
    }
    chrome.key("ArrowLeft");
    chrome.wait("document.querySelector('.lesson')?.dataset.step === '7'");
    is_quiet(&served, &chrome);
}

/// Without the scale the gradient of most rows disappears, and the norm does not: in the lesson's own numbers.
#[test]
fn the_lesson_says_what_happens_to_the_gradient() {
    let Some((served, chrome)) = opened(&[("v", "lesson"), ("n", "3"), ("t", TEXT)]) else { return };
    chrome.eval("document.querySelector('.question .plain').click()");
    chrome.wait("document.querySelectorAll('#gradients .number').length === 4");
    let numbers = chrome.eval("Array.from(document.querySelectorAll('#gradients .number'), (one) => Number(one.dataset.value))");
    let [median_without, median_with, norm_without, norm_with] = [0, 1, 2, 3].map(|i| number(&numbers[i]));
    assert!(median_without < 1e-4 && (median_with - 0.31).abs() < 0.02, "{numbers}");
    assert!(norm_without > norm_with, "{numbers}");
    // Exact expectations at any scale: those of the laboratory.
    chrome.wait("document.getElementById('scale-said').textContent.includes('exact')");
    let said = words(&chrome, "#scale-said");
    assert!(said.contains("entropy of a row is 1.724 nats") && said.contains("largest weight 0.36"), "{said}");
    is_quiet(&served, &chrome);
}

/// Pictures of the lesson have the library's numbers, the mask is dragged by keyboard, and nothing moves where motion is reduced.
#[test]
fn pictures_of_the_lesson_follow_the_numbers() {
    let Some((served, chrome)) = opened(&[("v", "lesson"), ("n", "2"), ("l", "1"), ("h", "2")]) else { return };
    let step = |at: usize| {
        chrome.eval(&format!("document.querySelectorAll('.dots button')[{at}].click()"));
        chrome.wait(&format!("document.querySelector('.lesson')?.dataset.step === '{at}'"));
        assert_eq!(words(&chrome, ".formula mark"), ["Q K\u{1d40}", "1/\u{221a}d_k", "mask", "softmax", "V"][at - 2]);
        chrome.eval("document.querySelector('.question .plain').click()");
    };
    let steps = "Promise.all(['/state.js', '/api.js'].map((name) => import(name))).then(([{ runs }, { ask }]) => \
        ask(`/api/run/${runs.B.run}/steps?layer=1&head=2`)).then(({ steps }) => steps)";
    // Pointing at a dot product shows its query, its key and their products, which add up to it.
    step(2);
    chrome.eval(
        "document.querySelector('#view td[data-row=\"5\"][data-column=\"3\"]').dispatchEvent(new PointerEvent('pointerover', { \
        bubbles: true }))",
    );
    let wrong = chrome.eval(&format!(
        "{steps}.then((steps) => {{
            const titles = Array.from(document.querySelectorAll('.product-picture .grow title'), (title) => \
            Number(title.textContent.split('= ')[1]));
            const sum = titles.reduce((all, x) => all + x, 0);
            const near = titles.length === steps.q[5].length && titles.every((x, i) => Math.abs(x - steps.q[5][i] * steps.k[3][i]) <= \
            1e-3 * Math.abs(x));
            return near && Math.abs(sum - steps.raw[5][3]) < 0.02 * titles.length ? '' : `${{titles}} is not ${{steps.raw[5][3]}}`;
        }})"
    ));
    assert_eq!(wrong, json!(""));
    // The mask is dragged off and on; what it hides is counted.
    step(4);
    let visible = "document.querySelectorAll('#view .steps td[data-value]').length";
    assert_eq!(chrome.eval(visible), json!(78));
    chrome.eval("document.getElementById('lesson-mask').focus()");
    for _ in 0..6 {
        chrome.key("ArrowLeft");
    }
    assert_eq!(chrome.eval(visible), json!(21 + 6 * 12));
    assert!(words(&chrome, "#mask-said").contains("6 of 12 rows: 93 scores"), "{}", words(&chrome, "#mask-said"));
    assert_eq!(chrome.eval("document.querySelector('.lesson').dataset.step"), json!("4"), "the arrows are the slider's");
    // Lines of the weighted sum are as wide as the weights.
    step(6);
    let wrong = chrome.eval(&format!(
        "{steps}.then((steps) => Array.from(document.querySelectorAll('.flow .pipe'), (line, i) => \
            [Number(line.getAttribute('stroke-width')), 0.5 + 19 * steps.weights[11][i]]).filter(([a, b]) => Math.abs(a - b) > 1e-6))"
    ));
    assert_eq!(wrong, json!([]));
    let moving = "getComputedStyle(document.querySelector('.flow .moving')).animationName";
    assert_eq!(chrome.eval(moving), json!("flowing"));
    chrome.shot("flow");
    chrome.call("Emulation.setEmulatedMedia", json!({ "features": [{ "name": "prefers-reduced-motion", "value": "reduce" }] }));
    assert_eq!(chrome.eval(moving), json!("none"));
    is_quiet(&served, &chrome);
}
