package pipeline

// RuleNameChanged is the rule of what a file would give up of the state of an older version of it. It needs both files, so that
// no comment in one of them silences it.
const RuleNameChanged = "name-changed"
