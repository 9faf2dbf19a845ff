#!/usr/bin/env bash
# Opens a report in a headless browser: report_browser.sh TERRACE DATA
#
# Without Chromium it is skipped (77), and a failure where TERRACE_BROWSER_TESTS=required says that
# it was asked for.
set -euo pipefail
terrace=$1
data=$2

browser=
for name in chromium chromium-browser google-chrome; do
  if [[ -z $browser ]]; then browser=$(command -v "$name" || true); fi
done
if [[ -z $browser ]]; then
  echo "skipped: this test needs Chromium (apt-get install chromium)"
  [[ ${TERRACE_BROWSER_TESTS:-} == required ]] && exit 1
  exit 77
fi

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"

fail() {
  echo "failed: $*" >&2
  exit 1
}

# Opens a page in a window of this width. Leaves its elements in dom and the browser's messages in
# messages.
open_page() {
  timeout 100 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars \
    --enable-logging=stderr --user-data-dir="$directory/profile" --window-size="$2,900" \
    --virtual-time-budget=2000 --dump-dom "file://$directory/$1" >dom 2>messages ||
    fail "the browser ended with $?: $(tail -3 messages)"
}

mkdir nvme
"$terrace" train --model nano --init random --data "$data" --data-format text --max-steps 12 \
  --sequence-length 32 --threads 1 --device-memory 12MiB --nvme nvme --place-optimizer nvme \
  --eval-every 4 --trace-steps 3:4 --run-dir 'a <b> & "c"' >log
cp -r 'a <b> & "c"' other
"$terrace" report 'a <b> & "c"' other --output report.html

# A page with a mistake must be noticed, or the checks below mean nothing.
printf '<!DOCTYPE html><title>x</title><script>undefined_name();</script>' >broken.html
open_page broken.html 1200
grep -q CONSOLE messages || fail "the browser does not report mistakes of scripts"

# Moves the pointer over the first chart, and records whether the page is wider than its window.
probe='<script>var box = document.querySelector(".chart svg");
box.dispatchEvent(new PointerEvent("pointermove", { clientX: box.getBoundingClientRect().left + 90 }));
var root = document.documentElement;
root.setAttribute("data-overflow", String(root.scrollWidth - root.clientWidth));</script>'
awk -v probe="$probe" '{ sub("</body>", ""); print } /<\/script>/ { print probe }' report.html >probed.html

for width in 400 1200; do
  open_page report.html "$width"
  if grep CONSOLE messages; then fail "the console has messages"; fi
  grep -q '<h2>Run a &lt;b&gt; &amp; "c"</h2>' dom || fail "the name of the run is not a text"
  (($(grep -c '<polyline' dom) >= 10)) || fail "curves are missing"
  grep -q 'class="timeline"' dom || fail "the timeline is missing"
  open_page probed.html "$width"
  grep -q 'data-overflow="0"' dom || fail "the page is wider than a window of $width pixels"
  grep -q 'class="readout"' dom || fail "the pointer shows no values"
done

timeout 100 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$directory/profile" \
  --print-to-pdf="$directory/report.pdf" "file://$directory/report.html" 2>messages
[[ -s report.pdf ]] || fail "the page cannot be printed"
echo "passed"
