//! Examples of a head, two texts in the same heads, and where a number of the lesson comes from.

use crate::first_look::{number, words};
use crate::served::said;
use crate::views::{TEXT, and_drawn, is_quiet, opened};
use serde_json::json;

const EXAMPLES: &str = "Array.from(document.querySelectorAll('#examples li'),
    (li) => [Number(li.dataset.surprise), li.querySelector('.looking').textContent, Number(li.dataset.row)])";

#[test]
fn a_head_has_unusual_examples_with_links_into_their_text() {
    let Some((served, chrome)) = opened(&[("v", "head"), ("l", "1"), ("h", "2")]) else { return };
    chrome.eval("document.getElementById('find-examples').click()");
    chrome.wait("document.querySelectorAll('#examples li').length === 12");
    assert!(words(&chrome, "#examples").contains("usually on: previous token"), "{}", words(&chrome, "#examples"));
    let found = chrome.eval(EXAMPLES);
    let surprises: Vec<f64> = found.as_array().expect("examples").iter().map(|one| number(&one[0])).collect();
    assert!(surprises[0] > 1.0 && surprises.windows(2).all(|pair| pair[0] >= pair[1]), "{surprises:?}");
    let largest = chrome.eval(
        "Math.max(...Array.from(document.querySelectorAll('#examples li:first-child .looked-at'),
            (key) => Number(key.title.replace('weight ', ''))))",
    );
    chrome.shot("examples");
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.querySelector('#examples .open').click()");
    });
    // The link opens the text with the token chosen, whose largest weight is the one of the example.
    assert_eq!(
        chrome.eval("import('/state.js').then(({ state }) => [state.queries, state.layer, state.head])"),
        json!([found[0][2].to_string(), 1, 2])
    );
    let shown = chrome.eval("Number(document.querySelector('#view details tbody td:nth-child(3)').textContent)");
    assert!((number(&shown) - number(&largest)).abs() < 1e-3, "{shown} is not {largest}");
    // Back is the text from before.
    chrome.eval("history.back()");
    chrome.wait(&format!("document.getElementById('text').value === {}", json!(TEXT)));
    is_quiet(&served, &chrome);
}

#[test]
fn two_texts_are_compared_head_by_head() {
    let other = "Leo and Ben went to the library. Leo and Ben went to the library.";
    let Some((served, chrome)) = opened(&[("t2", other), ("x", "previous")]) else { return };
    chrome.wait("document.getElementById('comparison')");
    assert_eq!(chrome.eval("document.querySelectorAll('.heads canvas').length"), json!(24));
    let rows = chrome.eval(
        "Array.from(document.querySelectorAll('#comparison tbody tr'), (tr) => Array.from(tr.cells, (td) => Number(td.textContent)))",
    );
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("UTF-8");
    let means = |text: &str| {
        let tables = said(&["look", "--text", text, "--json", "--quiet", "--out", out]);
        let table = tables.as_array().expect("tables").iter().find(|table| table["name"] == "look").expect("a table").clone();
        table["rows"].as_array().expect("rows").clone()
    };
    for (column, text) in [(2, TEXT), (3, other)] {
        let means = means(text);
        for row in rows.as_array().expect("rows") {
            let mean = means.iter().find(|mean| number(&mean["layer"]) == number(&row[0]) && number(&mean["head"]) == number(&row[1]));
            let expected = number(&mean.expect("a head")["previous_token_mass"]);
            assert!((number(&row[column]) - expected).abs() <= 1e-3 * expected.abs().max(1e-3), "{row}: {expected}");
        }
    }
    let changes: Vec<f64> = rows.as_array().expect("rows").iter().map(|row| number(&row[4]).abs()).collect();
    assert!(changes.windows(2).all(|pair| pair[0] >= pair[1]), "{changes:?}");
    chrome.shot("compared");
    is_quiet(&served, &chrome);
}

#[test]
fn a_number_of_the_lesson_says_where_it_comes_from_and_goes_to() {
    let Some((served, chrome)) = opened(&[("v", "lesson"), ("n", "4"), ("l", "1"), ("h", "2")]) else { return };
    chrome.eval("document.querySelector('.question .plain').click()");
    let point = |selector: &str| {
        chrome.eval(&format!("document.querySelector('{selector}').dispatchEvent(new PointerEvent('pointerover', {{ bubbles: true }}))"));
        words(&chrome, "#trail")
    };
    let said = point("td[data-row=\"5\"][data-column=\"3\"]");
    assert!(said.contains("step 4") && said.contains("step 6"), "{said}");
    // The values of the other steps are those of the library.
    let steps = chrome.eval(
        "Promise.all(['/state.js', '/api.js', '/base.js'].map((name) => import(name))).then(async ([{ runs }, { ask }, { short }]) => {
            const { steps } = await ask(`/api/run/${runs.B.run}/steps?layer=1&head=2`);
            return [short(steps.scaled[5][3]), short(steps.weights[5][3])];
        })",
    );
    for value in steps.as_array().expect("values") {
        assert!(said.contains(value.as_str().expect("a number")), "{value}: {said}");
    }
    // The weighted sum: a value goes into one coordinate of the output, which comes from all weights.
    chrome.eval("document.querySelectorAll('.dots button')[6].click()");
    chrome.wait("document.querySelector('.lesson')?.dataset.step === '6'");
    chrome.eval("document.querySelector('.question .plain').click()");
    point("i[data-kind=\"v\"][data-row=\"2\"][data-column=\"3\"]");
    assert_eq!(
        chrome.eval("Array.from(document.querySelectorAll('.to'), (one) => [one.dataset.kind, one.dataset.column])"),
        json!([["out", "3"], ["out", "3"]])
    );
    point("td[data-kind=\"out\"][data-column=\"1\"]");
    let kinds = chrome.eval("[...new Set(Array.from(document.querySelectorAll('.from'), (one) => one.dataset.kind))].sort()");
    assert_eq!(kinds, json!(["v", "weights"]));
    is_quiet(&served, &chrome);
}
