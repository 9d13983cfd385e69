// Package page looks at the page in a real browser: that it renews itself, works without JavaScript and from the
// keyboard, fits a narrow screen, obeys its own content policy, and that axe-core finds nothing.
//
//	go test -tags page ./test/page                       needs chromium
//	STREAMD_SHOTS=DIR go test -tags page ./test/page     and keeps a picture of each view
//
// The browser is driven by the DevTools protocol over a pipe (browser_test.go): no port, no other program.
// testdata/axe.min.js is axe-core 4.14.1 as published by Deque (MPL-2.0, testdata/axe.LICENSE), for this test only.
package page
