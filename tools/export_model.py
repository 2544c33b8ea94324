"""`python tools/export_model.py --model-file M.py --class-name C --out M.mlir`."""

import sys

from pcp.tools.export import main

if __name__ == "__main__":
    sys.exit(main())
