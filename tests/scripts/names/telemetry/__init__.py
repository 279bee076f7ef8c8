from .log import log as log
