/**
 * Components are drawn again whenever their parent is, as in plain Preact.
 *
 * The signals library skips a component while each of its properties is the identical object. The view changes its
 * messages, sessions and Runs in place, so that 5,000 Deltas copy nothing; a skipped component would show their old
 * state. What is expensive to draw has its own `shouldComponentUpdate`, with a version (`Message`).
 */

import "@preact/signals"; // its rule is replaced after it is installed
import { Component } from "preact";

delete Component.prototype.shouldComponentUpdate;
