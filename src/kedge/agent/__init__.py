"""The agent: one supervised task per Run, with its model requests and tool calls."""
