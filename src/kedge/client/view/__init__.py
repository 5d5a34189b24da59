"""View state of a front end: a pure reducer of wire events, and the text of approvals and questions."""
