"""One request to one model: the port (`base`) and one file per kind of provider."""
