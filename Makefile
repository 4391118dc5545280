generate:
	rm -f config/crd/bases/*.yaml
	cargo run -q -p kollect -- crds --dir config/crd/bases
