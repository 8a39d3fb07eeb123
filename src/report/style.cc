// The page's style: two colour schemes, chosen by the reader's setting, and one for paper.
#include "report/page.h"

namespace batchllm {

const char page_style[] = R"css(
:root{--page:#f7f8f9;--card:#fff;--ink:#1d2329;--soft:#5c6670;--line:#dfe3e7;--grid:#e9ecef;
--decode:#3f6da8;--own:#dd9a36;--prefix:#4b9b8a;--pages:#7a8fb5;--peak:#c9d3e4;--bar:#5f83b5;--good:#6f9d8f;--bad:#bf4a3f;
--limit:#8a939c;--tip:#fdf6e3;--tipline:#e5d3a1;
--k0:#e7ebef;--k1:#cfdff0;--k2:#9fc2e5;--k3:#3f79b8;--k4:#1d4c85;--t0:#38424c;--t1:#1d3a57;--t2:#13304d;--t3:#fff;--t4:#fff}
@media screen and (prefers-color-scheme:dark){:root{--page:#14171a;--card:#1b1f23;--ink:#e4e8eb;--soft:#9aa4ae;--line:#2e343a;
--grid:#272c31;--decode:#6d9bd8;--own:#dba04c;--prefix:#5cb3a0;--pages:#7e94bd;--peak:#3c475c;--bar:#6d93c8;--good:#6aa392;--bad:#d9695e;
--limit:#7d8791;--tip:#2b2718;--tipline:#544a26;
--k0:#2a3036;--k1:#20405f;--k2:#25598a;--k3:#357bbd;--k4:#7fb8ee;--t0:#c3cbd2;--t1:#d3e3f3;--t2:#e6f0fa;--t3:#fff;--t4:#0d2237}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:36px 24px 48px}
header h1{font-size:26px;line-height:1.25;margin:0;font-weight:650;overflow-wrap:anywhere}
header p{margin:4px 0 0;color:var(--soft)}
h2{font-size:18px;margin:0 0 6px;font-weight:620}
h3{font-size:15px;margin:22px 0 4px;font-weight:620}
p{margin:0 0 12px}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:20px 22px;margin:18px 0}
section>p{color:var(--soft);max-width:78ch}
section>p b{color:var(--ink);font-weight:600}
.key{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:1px;background:var(--line);border:1px solid var(--line);
border-radius:8px;overflow:hidden;margin:22px 0 18px}
.key div{background:var(--card);padding:14px 16px 12px;display:flex;flex-direction:column-reverse;justify-content:flex-end}
.key dt{color:var(--soft);font-size:13px}
.key dd{margin:0;font-size:25px;font-weight:620;line-height:1.2;font-variant-numeric:tabular-nums;display:contents}
.key dd small{order:-1;font-size:12px;font-weight:400;color:var(--soft)}
.advice{background:var(--tip);border:1px solid var(--tipline);border-radius:8px;padding:12px 16px;margin:0 0 18px;overflow-wrap:anywhere}
svg{display:block;width:100%;height:auto}
svg svg{overflow:hidden}
svg text{font-family:inherit;font-size:12px;fill:var(--soft)}
.icicle text{font-size:12.5px}
.icicle .figures{font-size:11px;opacity:.85}
.root rect,.alone rect{fill:var(--k0)}.root text,.alone text{fill:var(--t0)}
.rest rect{fill:none;stroke:var(--limit);stroke-dasharray:3 3}.rest text{fill:var(--soft)}
.s0 rect{fill:var(--k0)}.s1 rect{fill:var(--k1)}.s2 rect{fill:var(--k2)}.s3 rect{fill:var(--k3)}.s4 rect{fill:var(--k4)}
.s0 text{fill:var(--t0)}.s1 text{fill:var(--t1)}.s2 text{fill:var(--t2)}.s3 text{fill:var(--t3)}.s4 text{fill:var(--t4)}
.legend{font-size:13px;color:var(--soft);margin:10px 0 0;max-width:none}
.legend span{white-space:nowrap;margin-left:12px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px;vertical-align:-1px}
i.k0{background:var(--k0)}i.k1{background:var(--k1)}i.k2{background:var(--k2)}i.k3{background:var(--k3)}i.k4{background:var(--k4)}
i.decode{background:var(--decode)}i.own{background:var(--own)}i.prefix{background:var(--prefix)}i.pages{background:var(--pages)}i.peak{background:var(--peak)}
path.decode{fill:var(--decode)}path.own{fill:var(--own)}path.prefix{fill:var(--prefix)}path.pages{fill:var(--pages)}path.peak{fill:var(--peak)}
.grid{stroke:var(--grid)}.base{stroke:var(--limit)}.limit{stroke:var(--limit);stroke-dasharray:5 4}
.end{text-anchor:end}.middle{text-anchor:middle}
rect.bar{fill:var(--bar)}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(320px,1fr));gap:8px 28px;align-items:start}
figure{margin:6px 0 0}
figcaption{font-size:13px;color:var(--soft)}
figcaption b{color:var(--ink);margin-right:8px;font-size:14px}
table{border-collapse:collapse;width:100%;font-size:14px}
th{font-weight:500;text-align:left}
th,td{padding:5px 12px 5px 0;border-bottom:1px solid var(--grid);vertical-align:top}
tr:last-child>*{border-bottom:0}
thead th{color:var(--soft);font-size:13px;border-bottom:1px solid var(--line)}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.soft,.note{color:var(--soft)}
.note{font-size:13px;margin:10px 0 0}
td.bar{width:44%;padding-right:0;vertical-align:middle}
td.bar i{display:block;height:10px;border-radius:2px;min-width:1px}
i.time{background:var(--bar)}i.good{background:var(--good)}i.bad{background:var(--bad)}
.kind{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:13px}
.words{overflow-wrap:anywhere;min-width:200px}
.facts td,td{overflow-wrap:anywhere}
.n{overflow-wrap:normal}
.figures th,.facts th{color:var(--soft);white-space:nowrap;width:1%}
footer{color:var(--soft);font-size:13px;margin-top:20px}
@media (max-width:640px){main{padding:20px 12px}section{padding:16px 14px}section>.groups,section>table{display:block;overflow-x:auto}}
@media print{body{background:#fff;font-size:11pt}main{max-width:none;padding:0}section{break-inside:avoid;border-color:#ccc}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
@page{margin:14mm}
)css";

} // namespace batchllm
