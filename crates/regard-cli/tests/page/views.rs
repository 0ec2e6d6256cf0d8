//! The page in a real browser, against what the command says.

use crate::chrome::Chrome;
use crate::served::{Served, regard, said};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

pub const TEXT: &str = "Emma and David went to the market. David said, Emma, look at the red apple.";

pub fn fragment(words: &[(&str, &str)]) -> String {
    let escaped = |text: &str| -> String {
        text.bytes()
            .map(|byte| if byte.is_ascii_alphanumeric() || byte == b'.' { char::from(byte).to_string() } else { format!("%{byte:02X}") })
            .collect()
    };
    words.iter().map(|(name, value)| format!("&{name}={}", escaped(value))).collect()
}

/// A server, a browser, and the page with a text.
pub fn opened(words: &[(&str, &str)]) -> Option<(Served, Chrome)> {
    let chrome = Chrome::start()?;
    let served = Served::start(0);
    let mut all = vec![("t", TEXT)];
    all.extend(words);
    chrome.open(&format!("{}{}", served.address, fragment(&all)));
    settled(&chrome);
    Some((served, chrome))
}

/// Wait until the first view is drawn, and the names of the heads have come, which draw it again.
pub fn settled(chrome: &Chrome) {
    chrome.wait("document.getElementById('view').dataset.drawn && import('/labels.js').then(({ namesKnown }) => namesKnown())");
    chrome.wait("!document.querySelector('#view .heads') || document.querySelector('#view .heads .label')");
}

/// Nothing was asked of any other machine, and nothing was complained about.
pub fn is_quiet(served: &Served, chrome: &Chrome) {
    let own = format!("http://127.0.0.1:{}/", served.port);
    for address in chrome.requests.borrow().iter().filter(|address| *address != "about:blank") {
        assert!(
            address.starts_with(&own) || address.starts_with("data:") || address.starts_with("blob:"),
            "asked of another machine: {address}"
        );
        assert!(!address.contains(&served.token), "the token is in an address");
    }
    assert!(chrome.complaints.borrow().is_empty(), "{:?}", chrome.complaints.borrow());
}

const WAIT_DRAWN: &str = "(async () => { const b = document.getElementById('view').dataset.drawn; return b; })()";

/// Do something, and wait until the view was drawn again.
pub fn and_drawn(chrome: &Chrome, action: impl FnOnce(&Chrome)) {
    let before = chrome.eval(WAIT_DRAWN);
    action(chrome);
    chrome.wait(&format!("document.getElementById('view').dataset.drawn !== {before}"));
}

pub fn near(a: &Value, b: &Value) -> bool {
    let (a, b) = (a.as_f64().expect("a number"), b.as_f64().expect("a number"));
    (a - b).abs() <= 1e-9 * (1.0 + b.abs())
}

#[test]
fn numbers_of_views_are_those_of_the_command() {
    let Some((served, chrome)) = opened(&[]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("UTF-8");
    let look = said(&["look", "--text", TEXT, "--json", "--quiet", "--out", out]);
    let table = &look[0];
    let shown = chrome.eval(
        "import('/state.js').then(async ({ runs, state }) => { const { ask } = await import('/api.js'); const all = \
        []; for (let l = 0; l < runs.models[0].layers; l++) all.push(...await ask(`/api/run/${runs.B.run}/heads?layer=${l}`)); return \
        all; })",
    );
    let rows = table["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), shown.as_array().expect("heads").len());
    let names: Vec<&str> =
        table["columns"].as_array().expect("columns").iter().map(|column| column["name"].as_str().expect("a name")).collect();
    for (row, head) in rows.iter().zip(shown.as_array().expect("heads")) {
        for name in &names {
            // The page's short keys.
            let key = match *name {
                "diagonal_mass" => "own",
                "previous_token_mass" => "previous",
                "first_token_mass" => "first",
                "local_mass" => "local",
                "mean_distance" => "distance",
                same => same,
            };
            assert!(near(&head[key], &row[*name]), "{name}: {} is not {}", head[key], row[*name]);
        }
    }
    // The table of the view has a row for each.
    assert_eq!(chrome.eval("document.querySelectorAll('#view tbody tr').length"), json!(rows.len()));
    assert_eq!(chrome.eval("document.querySelectorAll('#view .heads canvas').length"), json!(rows.len()));
    is_quiet(&served, &chrome);
}

#[test]
fn typing_changes_the_pictures_and_the_last_text_wins() {
    let Some((served, chrome)) = opened(&[]) else { return };
    let picture = "Array.from(document.querySelectorAll('#view canvas'), (c) => c.toDataURL()).join()";
    let before = chrome.eval(picture);
    let typed = "(text) => { const box = document.getElementById('text'); box.value = text; box.dispatchEvent(new Event('input')); }";
    and_drawn(&chrome, |chrome| {
        chrome.eval(&format!("({typed})('David and Emma')"));
    });
    assert_ne!(chrome.eval(picture), before, "another text, the same picture");
    // Fifty texts at once.
    chrome.eval(&format!("for (let i = 0; i < 50; i++) ({typed})('Emma '.repeat(i + 1) + 'went')"));
    chrome.wait(
        "import('/state.js').then(({ runs, state }) => runs.B.of === state.text && \
        document.getElementById('view').dataset.run.endsWith(runs.B.run))",
    );
    let last = "Emma ".repeat(50) + "went";
    assert_eq!(chrome.eval("import('/state.js').then(({ runs }) => runs.B.of)"), json!(last));
    let tokens = chrome.eval("document.querySelectorAll('#tokens > span').length");
    let said = said(&["tokens", "--text", &last, "--json", "--quiet"]);
    assert_eq!(tokens, json!(said[0]["rows"].as_array().expect("rows").len()));
    is_quiet(&served, &chrome);
}

#[test]
fn a_head_taken_out_by_button_key_and_string_costs_the_same_and_back_undoes_it() {
    let Some((served, chrome)) = opened(&[("l", "1"), ("h", "2"), ("v", "head")]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let texts = folder.path().join("text.txt");
    std::fs::write(&texts, TEXT).expect("it is written");
    let file = texts.to_str().expect("UTF-8");
    let table = said(&["surgery", "L1.H2=zero", "--file", file, "--json", "--quiet"]);
    let change = table[0]["rows"].as_array().expect("rows").iter().find(|row| row["what"] == "change").expect("a change")["value"].clone();
    let cost = "Number(document.getElementById('loss-d').dataset.value)";
    assert_eq!(chrome.eval(cost), json!(0));
    and_drawn(&chrome, |chrome| {
        chrome.eval("document.getElementById('do-zero').click()");
    });
    let by_button = chrome.eval(cost);
    assert!(near(&by_button, &change), "{by_button} is not {change}");
    assert_eq!(chrome.eval("document.getElementById('edits').value"), json!("L1.H2=zero"));
    and_drawn(&chrome, |chrome| {
        chrome.eval("history.back()");
    });
    assert_eq!(chrome.eval("document.getElementById('edits').value"), json!(""));
    assert_eq!(chrome.eval(cost), json!(0));
    chrome.eval("document.activeElement.blur()");
    and_drawn(&chrome, |chrome| chrome.key("z"));
    assert_eq!(chrome.eval(cost), by_button);
    and_drawn(&chrome, |chrome| chrome.key("u"));
    and_drawn(&chrome, |chrome| {
        chrome.eval("const box = document.getElementById('edits'); box.value = 'L1.H2=zero'; box.dispatchEvent(new Event('change'))");
    });
    assert_eq!(chrome.eval(cost), by_button);
    and_drawn(&chrome, |chrome| {
        chrome.eval("history.back()");
    });
    and_drawn(&chrome, |chrome| {
        chrome.eval("history.forward()");
    });
    assert_eq!(chrome.eval(cost), by_button, "forward is redo");
    // A string that cannot be read says so, and changes nothing.
    chrome.eval("const wrong = document.getElementById('edits'); wrong.value = 'L99=zero'; wrong.dispatchEvent(new Event('change'))");
    chrome.wait("document.getElementById('banner').textContent.includes('L99')");
    // It can be corrected where it is written, and the model as it is can be looked at.
    assert_eq!(chrome.eval("document.getElementById('edits').value"), json!("L99=zero"));
    and_drawn(&chrome, |chrome| {
        chrome.eval("const right = document.getElementById('edits'); right.value = 'L0=zero'; right.dispatchEvent(new Event('change'))");
    });
    assert_eq!(chrome.eval("document.getElementById('banner').hidden"), json!(true));
    // A refusal is no complaint of the page; the browser notes its status.
    chrome.complaints.borrow_mut().retain(|complaint| !complaint.contains("422"));
    is_quiet(&served, &chrome);
}

#[test]
fn a_link_gives_the_same_view_to_a_fresh_browser() {
    let Some((served, chrome)) = opened(&[("v", "map"), ("l", "2"), ("h", "1"), ("e", "scale=off"), ("s", "D"), ("sink", "hide")]) else {
        return;
    };
    let link = chrome.eval("import('/state.js').then(({ link }) => link())").as_str().expect("a link").to_owned();
    assert!(!link.contains("token") && !link.contains(&served.token));
    let seen = "import('/map.js').then(({ mapShown }) => { const m = mapShown(); m.draw(); return m.canvas.toDataURL(); })";
    chrome.wait(
        "import('/map.js').then(({ mapShown }) => { const m = mapShown(); const t = m.tiles.get(m.step + ',0,0'); return t && t.values; })",
    );
    let before = chrome.eval(seen);
    let Some(fresh) = Chrome::start() else { return };
    fresh.open(&link);
    // Without the token it asks for it.
    fresh.wait("!document.getElementById('banner').hidden && document.querySelector('#banner input')");
    fresh.eval(&format!(
        "document.querySelector('#banner input').value = {}; document.querySelector('#banner button').click()",
        json!(served.address)
    ));
    fresh.wait("document.getElementById('view').dataset.drawn");
    fresh.wait(
        "import('/map.js').then(({ mapShown }) => { const m = mapShown(); const t = m?.tiles.get(m.step + ',0,0'); return t && \
        t.values; })",
    );
    assert_eq!(fresh.eval(seen), before, "another picture");
    assert_eq!(
        fresh.eval(
            "import('/state.js').then(({ state }) => [state.text, state.edits, state.side, state.layer, state.head, state.view, \
            state.sink])"
        ),
        json!([TEXT, "scale=off", "D", 2, 1, "map", "hide"])
    );
}

#[test]
fn a_tile_is_the_weights_cell_by_cell_and_files_have_its_numbers() {
    let Some((served, chrome)) = opened(&[("v", "head"), ("l", "1"), ("h", "2")]) else { return };
    let n = chrome.eval("import('/state.js').then(({ runs }) => runs.B.tokens.length)").as_u64().expect("a number");
    // The map, zoomed in, against rows of the head.
    let tile = chrome.eval(&format!("import('/draw.js').then(async ({{ tile }}) => Array.from(await tile(0, {n}, 0, {n}, 1)))"));
    let rows = chrome.eval(&format!(
        "import('/draw.js').then(async ({{ tile }}) => {{ const all = []; for (let i = 0; i < {n}; i++) \
        all.push(...await tile(i, 1, 0, {n}, 1)); return all; }})"
    ));
    assert_eq!(tile, rows);
    let sums =
        tile.as_array().expect("numbers").chunks(n as usize).map(|row| row.iter().map(|x| x.as_f64().expect("a number")).sum::<f64>());
    assert!(sums.into_iter().all(|sum| (sum - 1.0).abs() < 1e-4));
    // What is saved parses, and has the numbers of the lines that are drawn.
    let lines = chrome.eval(
        "Array.from(document.querySelectorAll('#view line[data-value]'), (l) => [Number(l.dataset.query), \
        Number(l.dataset.key), Number(l.dataset.value)])",
    );
    let text = chrome.eval("import('/export.js').then(({ svgText }) => svgText(document.querySelector('#view svg')))");
    let drawing = text.as_str().expect("a text");
    let parsed = roxmltree::Document::parse(drawing).expect("it parses");
    let saved: Vec<Value> = parsed
        .descendants()
        .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "line")))
        .map(|node| {
            let number = |name: &str| node.attribute(name).and_then(|x| x.parse::<f64>().ok()).expect("a number");
            json!([number("data-query") as u64, number("data-key") as u64, number("data-value")])
        })
        .collect();
    let lines = lines.as_array().expect("lines");
    assert!(saved.len() == lines.len() && saved.len() > 10);
    for (saved, line) in saved.iter().zip(lines) {
        assert_eq!(saved[0], line[0]);
        assert!(near(&saved[2], &line[2]));
        let at = line[0].as_u64().expect("a number") * n + line[1].as_u64().expect("a number");
        assert!(near(&line[2], &tile[at as usize]), "a line is not its weight");
    }
    is_quiet(&served, &chrome);
}

#[test]
fn texts_that_look_like_markup_stay_texts() {
    let Some(chrome) = Chrome::start() else { return };
    let served = Served::start(0);
    let nasty = [
        "</script><img src=x onerror=window.hurt=1>",
        "<svg onload=window.hurt=1>",
        "\u{202e}right to left \u{5e9}\u{5dc}\u{5d5}\u{5dd}",
        "a\u{0}b\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}",
        &"x".repeat(10_000),
        "\u{4f60}\u{597d}\u{4e16}\u{754c}",
    ];
    for text in nasty {
        for view in ["heads", "head", "map", "lesson"] {
            chrome.open(&format!("{}{}", served.address, fragment(&[("v", view)])));
            chrome.wait("document.getElementById('view').dataset.drawn");
            let typed = json!(text);
            chrome
                .eval(&format!("const box = document.getElementById('text'); box.value = {typed}; box.dispatchEvent(new Event('input'))"));
            // Drawn, or refused in words: letters that the small model does not know.
            chrome.wait(
                "import('/state.js').then(({ runs, state }) => !document.getElementById('banner').hidden || (runs.B.of === \
                state.text && document.getElementById('view').dataset.run.endsWith(runs.B.run)))",
            );
            assert_eq!(chrome.eval("window.hurt === undefined && document.querySelectorAll('img').length"), json!(0), "{text:?}");
            let wide = chrome.eval("document.documentElement.scrollWidth - window.innerWidth");
            assert!(
                wide.as_i64().expect("a number") <= 1,
                "{view}: {wide} pixels too wide with {:?}",
                text.chars().take(20).collect::<String>()
            );
        }
    }
    chrome.complaints.borrow_mut().retain(|complaint| !complaint.contains("422"));
    is_quiet(&served, &chrome);
}

#[test]
fn hostile_addresses_and_the_skip_link_do_no_harm() {
    let Some((served, chrome)) = opened(&[("e", "L0.H0=zero")]) else { return };
    chrome.eval("document.querySelector('.skip').click()");
    assert_eq!(chrome.eval("document.activeElement.id"), json!("view"));
    assert_eq!(chrome.eval("import('/state.js').then(({ state }) => [state.text, state.edits])"), json!([TEXT, "L0.H0=zero"]));
    for words in [
        "v=__proto__",
        "v=map&at=NaN,NaN,1",
        "v=map&at=0,0,Infinity",
        "v=map&at=4000,4000,1",
        "l=-1&h=1e9",
        "m=99",
        "m=-1",
        "v=head&q=-5",
        "v=head&q=1.5",
        "v=neuron&k=-5&q=NaN",
        "x=junk&y=__proto__",
        "c=junk",
        "v=lesson&d=3",
        "th=deadbeef",
        "s=Z",
        "o=__proto__",
        "e=junk",
        "e=L0-9999999.H0-9999999=zero",
        "e=L0-4095.H0-4095=zero",
        "token=%E2%98%83",
    ] {
        chrome.open(&format!("{}&{words}", served.address.replace("/#token=", "/#t=Emma%20and%20David&token=")));
        chrome.wait("document.getElementById('view').dataset.drawn");
        assert_eq!(chrome.eval("document.querySelectorAll('[role=tab][aria-selected=true]').length"), json!(1), "{words}");
        assert_eq!(chrome.eval("document.querySelector('#view .error')?.textContent ?? ''"), json!(""), "{words}");
    }
    // A link that the server has forgotten, and edits that are none, are refused by status; the page goes on.
    chrome.complaints.borrow_mut().retain(|complaint| !complaint.contains("410") && !complaint.contains("422"));
    assert!(chrome.complaints.borrow().is_empty(), "{:?}", chrome.complaints.borrow());
}

#[test]
fn the_server_goes_and_comes_back() {
    let Some((mut served, chrome)) = opened(&[]) else { return };
    let port = served.port;
    served.child.kill().expect("it dies");
    served.child.wait().expect("it is dead");
    chrome.eval("const box = document.getElementById('text'); box.value = 'Emma'; box.dispatchEvent(new Event('input'))");
    chrome.wait("document.getElementById('banner').textContent.includes('does not answer')");
    let again = Served::start(port);
    // It has another token, as it must.
    chrome.wait("document.querySelector('#banner input')");
    chrome.eval(&format!(
        "document.querySelector('#banner input').value = {}; document.querySelector('#banner button').click()",
        json!(again.address)
    ));
    chrome.wait("document.getElementById('banner').hidden && import('/state.js').then(({ runs }) => runs.B?.of === 'Emma')");
}

#[test]
fn the_keyboard_suffices_and_everything_has_a_name() {
    let Some((served, chrome)) = opened(&[]) else { return };
    chrome.eval("document.body.focus()");
    // From the first tab stop on, until the head's button in the surgery.
    let mut seen = Vec::new();
    for _ in 0..120 {
        chrome.key("Tab");
        let here = chrome.eval("document.activeElement.id || document.activeElement.tagName");
        seen.push(here.as_str().unwrap_or_default().to_owned());
        if here == "do-zero" {
            break;
        }
    }
    assert_eq!(seen.last().map(String::as_str), Some("do-zero"), "{seen:?}");
    and_drawn(&chrome, |chrome| chrome.key("Enter"));
    assert_eq!(chrome.eval("document.getElementById('edits').value"), json!("L0.H0=zero"));
    assert_eq!(chrome.eval("document.activeElement.id"), json!("do-zero"), "the focus stays where it was");
    for (key, view) in [("2", "head"), ("3", "map"), ("4", "neuron"), ("5", "lens"), ("6", "lesson"), ("1", "heads")] {
        chrome.eval("document.activeElement.blur()");
        and_drawn(&chrome, |chrome| chrome.key(key));
        assert_eq!(chrome.eval("document.querySelector('[role=tab][aria-selected=true]').id"), json!(format!("tab-{view}")));
        // Every button, field and picture has a name.
        let nameless = chrome.eval(
            "Array.from(document.querySelectorAll('button, input, select, textarea, canvas, svg[role=img], [role=listbox]')).filter((e) \
                => !e.closest('[aria-hidden=true]') && e.getAttribute('aria-hidden') !== 'true' && !(e.getAttribute('aria-label') || \
                e.textContent.trim() || e.labels?.length || e.title || e.placeholder)).map((e) => e.outerHTML.slice(0, 120))",
        );
        assert_eq!(nameless, json!([]), "{view}");
        for (width, dark) in [(1280, false), (1280, true), (390, false), (390, true)] {
            chrome.size(width, 900, dark);
            std::thread::sleep(Duration::from_millis(200));
            let wide = chrome.eval("document.documentElement.scrollWidth - window.innerWidth");
            assert!(wide.as_i64().expect("a number") <= 1, "{view} at {width}: {wide} pixels too wide");
            chrome.shot(&format!("{view}-{width}-{}", if dark { "dark" } else { "light" }));
        }
        chrome.size(1280, 900, false);
    }
    let tree = chrome.call("Accessibility.getFullAXTree", json!({}));
    let roles: Vec<String> = tree["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .filter(|node| node["ignored"] != true)
        .map(|node| format!("{}: {}", node["role"]["value"].as_str().unwrap_or(""), node["name"]["value"].as_str().unwrap_or("")))
        .collect();
    for wanted in [
        "heading: Regard",
        "heading: Text",
        "heading: Surgery",
        "tab: Heads",
        "button: zero",
        "textbox: the text that the model reads",
        "listbox: tokens, coloured by loss",
    ] {
        assert!(roles.iter().any(|role| role == wanted), "{wanted} is not in the tree: {roles:?}");
    }
    is_quiet(&served, &chrome);
}

#[test]
fn long_texts_are_zoomed_and_panned() {
    let Some((served, chrome)) = opened(&[("v", "map")]) else { return };
    // Thirty thousand by hand: REGARD_PAGE_TOKENS=30000.
    let tokens: usize = std::env::var("REGARD_PAGE_TOKENS").ok().and_then(|n| n.parse().ok()).unwrap_or(3000);
    let text = "Emma and David went to the market. ".repeat(tokens / 35 + 1)[..tokens].to_owned();
    let begun = Instant::now();
    and_drawn(&chrome, |chrome| {
        chrome.eval(&format!(
            "const box = document.getElementById('text'); box.value = {}; box.dispatchEvent(new Event('input'))",
            json!(text)
        ));
    });
    eprintln!(
        "{tokens} tokens: {:?} from the key to the picture, {} ms of it behind the run",
        begun.elapsed(),
        chrome.eval("document.documentElement.dataset.milliseconds")
    );
    let frames = chrome.eval(
        "import('/map.js').then(async ({ mapShown }) => {
            const map = mapShown();
            const times = [];
            for (let i = 0; i < 200; i++) {
                const begun = performance.now();
                if (i % 3 === 0) map.zoomAt(400, 300, i < 90 ? 0.8 : 1.25); else map.move(i % 2 ? 60 : -25, 40);
                await new Promise(requestAnimationFrame);
                map.draw();
                times.push(performance.now() - begun);
            }
            times.sort((a, b) => a - b);
            return [times[100], times[190], map.times.sort((a, b) => a - b)[Math.floor(map.times.length * 0.95)], \
            performance.memory.usedJSHeapSize];
        })",
    );
    eprintln!("median, 95 % of steps, 95 % of drawing (ms), heap: {frames}");
    assert!(frames[3].as_f64().expect("bytes") < 300e6);
    is_quiet(&served, &chrome);
}

#[test]
fn a_page_in_one_file_opens_from_the_disk() {
    let Some(chrome) = Chrome::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("look.html");
    let (path, out) = (file.to_str().expect("UTF-8"), folder.path().to_str().expect("UTF-8"));
    let status =
        regard(&["look", "--text", TEXT, "--edits", "L0.H1=zero", "--html", path, "--quiet", "--out", out]).status().expect("it runs");
    assert!(status.success());
    chrome.open(&format!("file://{path}"));
    chrome.wait("document.getElementById('view').dataset.drawn");
    assert_eq!(chrome.eval("document.querySelectorAll('#view .heads canvas').length > 0"), json!(true));
    and_drawn(&chrome, |chrome| chrome.key("2"));
    assert!(chrome.eval("document.querySelectorAll('#view line').length").as_u64().expect("a number") > 10);
    and_drawn(&chrome, |chrome| chrome.key("3"));
    chrome.shot("frozen-map");
    // Views whose data is not in the file are not shown, and the title names the model.
    assert_eq!(
        chrome.eval("Array.from(document.querySelectorAll('[role=tab]'), (tab) => tab.id)"),
        json!(["tab-heads", "tab-head", "tab-map", "tab-lens"])
    );
    assert!(chrome.eval("document.title").as_str().expect("a title").contains("own model"));
    let footer = chrome.eval("document.getElementById('footer').textContent").as_str().expect("words").to_owned();
    for part in ["own model", "SHA-256", "regard look --text", "--html", "L0.H1=zero"] {
        assert!(footer.contains(part), "{part}: {footer}");
    }
    // What is not in the file is neither shown nor claimed.
    for (id, shown) in [("example", false), ("start-tour", false), ("tries", false), ("glossary", true)] {
        let size = chrome.eval(&format!("document.getElementById('{id}').getBoundingClientRect().width"));
        assert_eq!(size.as_f64().is_some_and(|width| width > 0.0), shown, "{id}");
    }
    chrome.key("z");
    assert!(!chrome.eval("document.getElementById('surgery').textContent").as_str().expect("words").contains("change nothing"));
    assert_eq!(chrome.eval("document.getElementById('text').readOnly"), json!(true));
    for address in chrome.requests.borrow().iter() {
        assert!(address.starts_with("file://") || address.starts_with("data:") || address == "about:blank", "{address}");
    }
    assert!(chrome.complaints.borrow().is_empty(), "{:?}", chrome.complaints.borrow());
}
