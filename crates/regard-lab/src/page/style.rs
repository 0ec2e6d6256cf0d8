//! The page's style sheet: system fonts, one column, light and dark, paper.

use crate::figure::{Theme, painted_by_variables, variables};

const LIGHT: &str = "--paper:#fff;--card:#f6f7f9;--ink:#1a1d21;--soft:#4c535c;--line:#d9dde2;--link:#00579a;--good:#00664d;--good-bg:#dff3ec;\
--part:#7a4b00;--part-bg:#fbeed2;--bad:#9c1c2b;--bad-bg:#fbe3e5;--note:#3d4a9a;--note-bg:#e6e9fa;color-scheme:light;";
const DARK: &str = "--paper:#15181d;--card:#1d2127;--ink:#eceff3;--soft:#b4bcc6;--line:#363d46;--link:#7cc0f5;--good:#6fdcb8;--good-bg:#11332a;\
--part:#f2c46b;--part-bg:#3a2c10;--bad:#ff9aa5;--bad-bg:#42191f;--note:#aeb8ff;--note-bg:#23284a;color-scheme:dark;";

const RULES: &str = r#"
*{box-sizing:border-box}
html{scroll-behavior:smooth;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:1.0625rem/1.6 system-ui,-apple-system,"Segoe UI","Noto Sans",Roboto,"Liberation Sans",Helvetica,Arial,sans-serif;
 display:grid;grid-template-columns:minmax(0,15rem) minmax(0,1fr);grid-template-areas:"top top" "toc main" "foot foot";max-width:80rem;margin-inline:auto;padding-inline:1.5rem}
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem;top:1rem;background:var(--card);padding:.5rem 1rem;z-index:9}
header.top{grid-area:top;display:flex;gap:1rem;justify-content:space-between;align-items:start;padding-block:2rem 1rem;border-bottom:1px solid var(--line)}
h1{font-size:clamp(1.6rem,1.2rem + 2vw,2.4rem);line-height:1.15;margin:0;letter-spacing:-.015em;text-wrap:balance}
h2{font-size:1.5rem;line-height:1.25;margin:0 0 .6rem;letter-spacing:-.01em;text-wrap:balance}
h3{font-size:1.0625rem;margin:0;line-height:1.35}
.subtitle{margin:.4rem 0 0;color:var(--soft)}
a{color:var(--link)}a.self{color:inherit;text-decoration:none}a.self:hover{text-decoration:underline}
sub,sup{font-size:.75em;line-height:0}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;font-size:.9em}
button{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);border-radius:.4rem;padding:.3rem .65rem;cursor:pointer}
button:hover{border-color:var(--soft)}
:focus-visible{outline:3px solid var(--link);outline-offset:2px;border-radius:.3rem}
nav.toc{grid-area:toc;position:sticky;top:0;align-self:start;max-height:100vh;overflow:auto;padding:1.6rem 1.2rem 2rem 0;font-size:.92rem;line-height:1.4}
nav.toc ol{list-style:none;margin:0;padding:0}nav.toc a{display:block;padding:.3rem .6rem;border-left:2px solid var(--line);color:var(--soft);text-decoration:none}
nav.toc a:hover,nav.toc a[aria-current]{color:var(--ink);border-color:var(--link)}
main{grid-area:main;min-width:0;padding-block:1.4rem 3rem}
main>section{padding-block:1.4rem 1.8rem;border-bottom:1px solid var(--line);scroll-margin-top:.5rem}main>section:last-child{border-bottom:0}
p{max-width:44rem;margin:.5rem 0 .9rem}
.answer{font-size:1.2rem;line-height:1.55}
.tag{font-size:.72rem;font-weight:600;letter-spacing:.06em;text-transform:uppercase;color:var(--soft);margin-right:.35rem}
.badge{display:inline-block;white-space:nowrap;font-size:.85rem;font-weight:600;line-height:1.3;padding:.15rem .6rem;border-radius:1rem;margin-right:.4rem;color:var(--ink);background:var(--card);border:1px solid var(--line)}
.badge.good{color:var(--good);background:var(--good-bg);border-color:transparent}.badge.part{color:var(--part);background:var(--part-bg);border-color:transparent}
.badge.bad{color:var(--bad);background:var(--bad-bg);border-color:transparent}.badge.note{color:var(--note);background:var(--note-bg);border-color:transparent}
.glance ul{list-style:none;margin:0;padding:0;display:grid;gap:.45rem}.glance li{display:grid;grid-template-columns:12.5rem 1fr;column-gap:.7rem;align-items:baseline}.glance .badge{justify-self:start}.glance li a{color:inherit;text-decoration-color:var(--line)}
.claim{border-left:3px solid var(--line);padding-left:1rem;margin:1rem 0}.claim p{margin:.25rem 0}.said{font-style:normal}
figure{margin:1.5rem 0;padding:0}
.figure-head{display:flex;justify-content:space-between;gap:1rem;align-items:center;margin-bottom:.3rem}
.plot{cursor:zoom-in;position:relative}
.panels{display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:flex-start}
.panels svg{flex:1 1 21rem;min-width:min(100%,21rem);height:auto;display:block}
.panels svg text{font-variant-numeric:tabular-nums}
.rt:hover,.rt.on{fill-opacity:.18;fill:var(--ink)}
rect.on{stroke:var(--ink);stroke-width:2}
figcaption{color:var(--soft);font-size:.95rem;line-height:1.5;max-width:44rem;margin-top:.4rem}
#tip{position:fixed;z-index:20;pointer-events:none;left:0;top:0;max-width:20rem;white-space:pre-line;background:var(--ink);color:var(--paper);padding:.35rem .6rem;border-radius:.35rem;font-size:.85rem;line-height:1.35;font-variant-numeric:tabular-nums;opacity:0}
#tip.on{opacity:1}
details.data{margin:1rem 0;border:1px solid var(--line);border-radius:.5rem;overflow:hidden}
details.data summary{padding:.55rem .8rem;cursor:pointer;background:var(--card);font-size:.95rem}.count{color:var(--soft);font-size:.85rem;white-space:nowrap}
.scroll{overflow:auto;max-height:30rem}
table{border-collapse:collapse;font-size:.9rem;line-height:1.35;font-variant-numeric:tabular-nums;width:max-content;min-width:100%}
th,td{padding:.3rem .8rem;text-align:left;vertical-align:top;max-width:28rem}th.n,td.n{text-align:right;white-space:nowrap}
thead th{position:sticky;top:0;background:var(--paper);border-bottom:1px solid var(--soft);padding:0}
th button{border:0;background:none;width:100%;font-weight:600;text-align:inherit;padding:.4rem .8rem;border-radius:0}
th[aria-sort=ascending] button::after{content:" \2191"}th[aria-sort=descending] button::after{content:" \2193"}
tbody tr+tr td{border-top:1px solid var(--line)}tbody tr:hover td{background:var(--card)}
.take{margin:0;padding:.45rem .8rem;font-size:.85rem;border-top:1px solid var(--line)}
.remark{color:var(--soft)}
.rerun{display:flex;flex-wrap:wrap;align-items:center;gap:.5rem;margin-top:1.2rem}.rerun pre{margin:0;padding:.45rem .8rem;background:var(--card);border-radius:.4rem;overflow:auto;max-width:100%}
.rerun .copy{font-size:.85rem}
footer{grid-area:foot;border-top:1px solid var(--line);padding-block:1.4rem 3rem;color:var(--soft);font-size:.9rem}footer h2{font-size:1.05rem}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(16rem,1fr));gap:.3rem 2rem;margin:0}dl div{display:flex;gap:.6rem}dt{font-weight:600}dd{margin:0;overflow-wrap:anywhere}
dialog{border:0;padding:1rem;background:var(--paper);color:var(--ink);width:96vw;max-width:96vw;height:94vh;max-height:94vh;border-radius:.6rem}
dialog::backdrop{background:#000a}
#zoom-close{position:absolute;right:.8rem;top:.8rem;z-index:2}
#zoom-body{height:100%;display:flex;flex-direction:column;gap:.6rem}#zoom-body h3{padding-right:3rem}#zoom-body figcaption{max-width:none}
#zoom-body .panels{flex:1;min-height:0;flex-wrap:nowrap;justify-content:center;align-items:stretch}
#zoom-body .panels svg{max-width:none!important;min-width:0;width:100%;height:100%;flex:1 1 0}
@media (max-width:56rem){body{display:block;padding-inline:1rem}nav.toc{position:static;max-height:none;padding:1rem 0 0}nav.toc ol{display:flex;flex-wrap:wrap;gap:.2rem .4rem}nav.toc a{border-left:0;border:1px solid var(--line);border-radius:1rem;padding:.15rem .7rem}
 .glance li{grid-template-columns:1fr;gap:.1rem}.answer{font-size:1.1rem}.panels svg{min-width:100%}#zoom-body .panels{flex-wrap:wrap;overflow:auto;justify-content:start}#zoom-body .panels svg{flex:1 0 100%;height:auto;min-width:34rem}}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
@media print{body{display:block;max-width:none;font-size:10pt}nav.toc,#theme,.enlarge,.copy,.take,dialog,#tip,.skip{display:none!important}
 main>section{break-inside:auto;border:0}figure,.claim,tr{break-inside:avoid}h2,h3{break-after:avoid}.scroll{max-height:none;overflow:visible}table{width:100%}a{color:inherit;text-decoration:none}}
"#;

/// The whole style sheet.
pub(super) fn style() -> String {
    let (light, dark) = (variables(Theme::Light), variables(Theme::Dark));
    format!(
        ":root{{{LIGHT}{light}}}@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{DARK}{dark}}}}}:root[data-theme=dark]{{{DARK}{dark}}}\
         @media print{{:root:root:root{{{LIGHT}{light}}}}}{}{RULES}",
        painted_by_variables()
    )
}
